package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

const driverName = "gpu.nvidia.com"

// A selector that is copied from the documentation has to work on every machine:
// a runtime error would end the scheduling of its pod.
func TestDocumentedSelectorsWorkOnEveryMachine(t *testing.T) {
	t.Run("whole GPUs", func(t *testing.T) { expectSelectorsWork(t, "| to get | selector |\n", gpu.ByDefault, "gpu") })
	t.Run("partitions", func(t *testing.T) {
		expectSelectorsWork(t, "| to get | selector for partitions |\n", gpu.ByDefault, "mig")
	})
	t.Run("shares", func(t *testing.T) {
		expectSelectorsWork(t, "| to get | selector for shares |\n", everyShape, "timeslice", "mps", "mig-timeslice")
	})
}

// expectSelectorsWork evaluates a table's selectors for the devices of some types, as
// after the selector of their class.
func expectSelectorsWork(t *testing.T, table string, policy func(gpu.GPU) gpu.Policy, types ...string) {
	t.Helper()
	published := publishedDevices(t, policy, types...)
	for _, expression := range documentedSelectors(t, table) {
		t.Run(expression, func(t *testing.T) { expectSelectorWorks(t, expression, published) })
	}
}

// publishedDevices are those of some types that the machines of the project publish, by machine.
func publishedDevices(t *testing.T, policy func(gpu.GPU) gpu.Policy, types ...string) map[string][]resourceapi.Device {
	t.Helper()
	published := map[string][]resourceapi.Device{}
	for _, machine := range nodes.Names() {
		published[machine] = slices.DeleteFunc(devicesOf(publishedPool(t, machine, policy)), func(d resourceapi.Device) bool {
			return !slices.Contains(types, *d.Attributes["type"].StringValue)
		})
	}
	return published
}

func expectSelectorWorks(t *testing.T, expression string, published map[string][]resourceapi.Device) {
	t.Helper()
	compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{})
	if compiled.Error != nil {
		t.Fatal(compiled.Error)
	}
	matched := 0
	for machine, all := range published {
		for _, device := range all {
			selected, _, err := compiled.DeviceMatches(t.Context(), cel.Device{
				Driver: driverName, AllowMultipleAllocations: device.AllowMultipleAllocations, Attributes: device.Attributes, Capacity: device.Capacity,
			})
			if err != nil {
				t.Errorf("%s, %s: %v", machine, device.Name, err)
			}
			if selected {
				matched++
			}
		}
	}
	placeholder := strings.Contains(expression, "…")
	if matched == 0 && !placeholder {
		t.Error("selects nothing on any machine")
	}
}

// typesOfClass are the types of the devices that a class of the chart selects.
var typesOfClass = map[string][]string{
	"gpu.nvidia.com": {"gpu"}, "mig.nvidia.com": {"mig"}, "timeslice.nvidia.com": {"timeslice"}, "mps.nvidia.com": {"mps"},
	"mig-timeslice.nvidia.com": {"mig-timeslice"}, "mig-mps.nvidia.com": {"mig-mps"},
}

// The selectors in manifests, of pages and of examples, work as those of the tables do.
func TestSelectorsOfManifestsWork(t *testing.T) {
	found, ofClass := 0, map[string]map[string][]resourceapi.Device{}
	for where, text := range manifests(t) {
		for document := range strings.SplitSeq(text, "\n---\n") {
			var manifest any
			if err := yaml.Unmarshal([]byte(document), &manifest); err != nil {
				t.Errorf("%s: %v", where, err)
			}
			eachRequest(manifest, func(class string, expressions []string) {
				found += len(expressions)
				policy := everyShape
				if class == driverName || class == "mig."+driverName {
					policy = gpu.ByDefault
				}
				types := typesOfClass[class]
				if len(expressions) > 0 && types == nil {
					return
				}
				if len(expressions) > 0 && ofClass[class] == nil {
					ofClass[class] = publishedDevices(t, policy, types...)
				}
				for _, expression := range expressions {
					t.Run(where, func(t *testing.T) { expectSelectorWorks(t, expression, ofClass[class]) })
				}
			})
		}
	}
	if found < 4 {
		t.Errorf("only %d selectors were found: does the test look for the right thing?", found)
	}
}

// manifests are the blocks of YAML in the pages, and the examples, by where they are.
func manifests(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, block := range blocks(t) {
		if block.Language == "yaml" && block.Attributes["fragment"] == "" {
			found[block.String()] = block.Text
		}
	}
	for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, "examples", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			found[file] = read(t, file)
		}
	}
	return found
}

// eachRequest calls with the class and the selectors of every request for devices within.
func eachRequest(within any, call func(class string, expressions []string)) {
	switch value := within.(type) {
	case []any:
		for _, one := range value {
			eachRequest(one, call)
		}
	case map[string]any:
		if class, is := value["deviceClassName"].(string); is {
			var expressions []string
			selectors, _ := value["selectors"].([]any)
			for _, selector := range selectors {
				if s, is := selector.(map[string]any); is {
					if c, is := s["cel"].(map[string]any); is {
						if text, is := c["expression"].(string); is {
							expressions = append(expressions, text)
						}
					}
				}
			}
			call(class, expressions)
		}
		for _, one := range value {
			eachRequest(one, call)
		}
	}
}

var tableRow = regexp.MustCompile("(?m)^\\|[^|]*\\| `(device\\..*)` \\|$")

func documentedSelectors(t *testing.T, table string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "use", "selectors.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, rows, _ := strings.Cut(string(text), table)
	rows, _, _ = strings.Cut(rows, "\n\n")
	var found []string
	for _, match := range tableRow.FindAllStringSubmatch(rows, -1) {
		// A pipe inside a table is written with a backslash.
		found = append(found, strings.ReplaceAll(match[1], `\|`, "|"))
	}
	if len(found) < 5 {
		t.Fatalf("only %d selectors were found in docs/use/selectors.md below %q", len(found), table)
	}
	return found
}
