package helm_test

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestSchemaRefusesUnknownValuesEverywhere walks the schema: an object either names all
// that it may hold, or is a map of names that the user chooses, or belongs to Kubernetes.
func TestSchemaRefusesUnknownValuesEverywhere(t *testing.T) {
	var schema any
	readInto(t, "mica/values.schema.json", &schema)
	objects := 0
	walkSchema(schema, "", func(path string, node map[string]any) {
		if node["type"] != "object" {
			return
		}
		objects++
		additional, stated := node["additionalProperties"]
		switch {
		case !stated:
			t.Errorf("%s accepts unknown values: it does not state additionalProperties", path)
		case additional == true:
			description, _ := node["description"].(string)
			if !strings.Contains(description, "Kubernetes") && !strings.Contains(description, "Helm") {
				t.Errorf("%s accepts unknown values, and its description does not say who checks them", path)
			}
		}
	})
	if objects < 10 {
		t.Errorf("found %d objects in the schema, too few to be the chart's", objects)
	}
}

func walkSchema(value any, path string, visit func(string, map[string]any)) {
	switch value := value.(type) {
	case map[string]any:
		visit(path, value)
		for name, child := range value {
			walkSchema(child, path+"/"+name, visit)
		}
	case []any:
		for _, child := range value {
			walkSchema(child, path, visit)
		}
	}
}

func TestSchemaAndValuesNameTheSameThings(t *testing.T) {
	var schema, values map[string]any
	readInto(t, "mica/values.schema.json", &schema)
	readInto(t, "mica/values.yaml", &values)
	ignored := ignoredValues(t)
	compareNames(t, "", schema, values, ignored)
	for name := range ignored {
		if strings.HasPrefix(name, "featureGates.") {
			continue // a pattern of the schema
		}
		t.Errorf("nvidia-values.yaml names %s, which values.schema.json does not allow", name)
	}
}

// ignoredValues are those of NVIDIA's chart, which need not be in values.yaml.
func ignoredValues(t *testing.T) map[string]bool {
	t.Helper()
	var entries []struct{ Value, Instead string }
	readInto(t, "mica/nvidia-values.yaml", &entries)
	names := map[string]bool{}
	for _, entry := range entries {
		names[entry.Value] = true
	}
	return names
}

// compareNames removes from ignored what it has found in the schema.
func compareNames(t *testing.T, path string, schema, values map[string]any, ignored map[string]bool) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name := range properties {
		_, found := values[name]
		if !found && !ignored[path+name] && path+name != "global" {
			t.Errorf("values.schema.json allows %s, which neither values.yaml nor nvidia-values.yaml shows", path+name)
		}
		if !found {
			delete(ignored, path+name)
		}
	}
	for name, value := range values {
		property, _ := properties[name].(map[string]any)
		if property == nil {
			t.Errorf("values.yaml has %s, which values.schema.json does not know", path+name)
			continue
		}
		child, isMap := value.(map[string]any)
		if isMap && property["properties"] != nil && !optionalParts[path+name] {
			compareNames(t, path+name+".", property, child, ignored)
		}
	}
}

// optionalParts are objects of Kubernetes whose unset fields values.yaml leaves out.
var optionalParts = map[string]bool{
	"kubeletPlugin.affinity":                    true,
	"kubeletPlugin.containers.plugin.resources": true,
	"controller.resources":                      true,
	"mps.resources":                             true,
}

// TestReadmeTableNamesEveryValue keeps the table of README.md to the names and the
// defaults of values.yaml, in its order.
func TestReadmeTableNamesEveryValue(t *testing.T) {
	text, err := os.ReadFile("mica/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := documentedValues(t, string(text))
	readme, err := os.ReadFile("mica/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	last := 0
	for i, line := range strings.Split(string(readme), "\n") {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			if len(got) > 0 && i != last+1 {
				t.Errorf("line %d of mica/README.md, of %s, is no row: the table ends before it", i+1, name)
			}
			got, last = append(got, name), i
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("the table of mica/README.md does not name the values of mica/values.yaml in their order:\n got: %q\nwant: %q", got, want)
	}
	if len(want) < 30 {
		t.Errorf("found %d values in values.yaml, too few to be the chart's", len(want))
	}
}

// The API server would take an object in another namespace than the others for good.
func TestNamespaceOverrideMovesEverything(t *testing.T) {
	rendered := render(t, "--namespace", "elsewhere", "--values", "testdata/nvidia.values.yaml", "--set", "mps.enabled=true,controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false,podMonitor.enabled=true")
	if strings.Contains(rendered, "elsewhere") {
		t.Error("with namespaceOverride=gpus something is still in the release's namespace")
	}
	if count := strings.Count(rendered, "namespace: gpus"); count < 10 {
		t.Errorf("found %d objects in the namespace gpus, too few to be the chart's", count)
	}
}

// documentedValues returns the names of the values that values.yaml documents with a "# --" comment,
// and fails the test for a leaf without one.
func documentedValues(t *testing.T, text string) []string {
	t.Helper()
	var found []string
	var path []string
	inValue := -1 // indentation of the documented value whose lines are being skipped
	documented := false
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		indent := (len(line) - len(strings.TrimLeft(line, " "))) / 2
		switch {
		case trimmed == "":
			continue
		case strings.HasPrefix(trimmed, "# --"):
			documented, inValue = true, -1
			continue
		case strings.HasPrefix(trimmed, "#"):
			continue
		case inValue >= 0 && indent > inValue:
			continue
		}
		inValue = -1
		name, rest, isKey := strings.Cut(trimmed, ":")
		if !isKey {
			t.Fatalf("values.yaml: cannot read the line %q", trimmed)
		}
		path = append(path[:indent], name)
		switch {
		case documented:
			found = append(found, strings.Join(path, "."))
			documented, inValue = false, indent
		case strings.TrimSpace(rest) != "":
			t.Errorf("values.yaml: %s has no \"# --\" comment that explains it", strings.Join(path, "."))
		}
	}
	return found
}

func readInto(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	decode := func() error { return yaml.Unmarshal(content, into) }
	if strings.HasSuffix(path, ".json") {
		decode = func() error { return json.Unmarshal(content, into) }
	}
	if err := decode(); err != nil {
		t.Fatalf("decode %s: %v", path, err)
	}
}

// TestReadmeNamesWhatIsInstalled keeps the table of README.md to the kinds that the chart renders.
func TestReadmeNamesWhatIsInstalled(t *testing.T) {
	readme, err := os.ReadFile("mica/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(readme), "\n## What is installed\n")
	table, _, _ := strings.Cut(after, "\n## ")
	kinds := map[string]bool{}
	rendered := render(t, "--namespace", "mica", "--values", "testdata/everything.values.yaml", "--set", "mps.enabled=true,controller.enabled=true,"+
		"controller.keda.enabled=true,controller.keda.tls.requireClientCertificate=false,podMonitor.enabled=false,serviceMonitor.enabled=true,networkPolicy.enabled=true,grafanaDashboards.enabled=true")
	for line := range strings.Lines(rendered) {
		if kind, ok := strings.CutPrefix(line, "kind: "); ok {
			kinds[strings.TrimSpace(kind)] = true
		}
	}
	for kind := range kinds {
		// A binding stands with what it binds.
		object := regexp.MustCompile(`\b` + strings.TrimSuffix(kind, "y") + `(y|ies|s|es)?\b`)
		if !strings.HasSuffix(kind, "PolicyBinding") && !object.MatchString(table) {
			t.Errorf("README.md does not say why the chart installs a %s", kind)
		}
	}
	if len(kinds) < 18 {
		t.Errorf("found %d kinds in what the chart renders, too few to be all", len(kinds))
	}
}
