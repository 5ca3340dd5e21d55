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
	devices := map[string][]resourceapi.Device{}
	for _, machine := range nodes.Names() {
		devices[machine] = slices.DeleteFunc(devicesOf(publishedPool(t, machine, policy)), func(d resourceapi.Device) bool {
			return !slices.Contains(types, *d.Attributes["type"].StringValue)
		})
	}
	for _, expression := range documentedSelectors(t, table) {
		t.Run(expression, func(t *testing.T) {
			compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(expression, cel.Options{})
			if compiled.Error != nil {
				t.Fatal(compiled.Error)
			}
			matched := 0
			for machine, all := range devices {
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
		})
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
