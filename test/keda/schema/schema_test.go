package schema

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

var root = filepath.Join("..", "..", "..")

// files are where ScaledObjects are, with how many objects of KEDA there are at least.
var files = []struct {
	pattern string
	objects int
}{
	{filepath.Join(root, "pkg", "elastic", "scaledobject", "testdata", "*.yaml"), 14},
	{filepath.Join(root, "examples", "*", "*.yaml"), 5},
}

// kedas are the objects of KEDA in a file.
func kedas(t *testing.T, path string) []string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, document := range strings.Split(string(content), "\n---\n") {
		if strings.Contains("\n"+document, "\napiVersion: keda.sh/") {
			found = append(found, document)
		}
	}
	return found
}

func parse(t *testing.T, document string) map[string]any {
	t.Helper()
	text, err := yaml.YAMLToJSONStrict([]byte(document))
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	// Not encoding/json's, which makes all numbers fractions.
	if err := json.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func TestWhatIsPrintedAndShownIsWhatKEDAAccepts(t *testing.T) {
	known := kinds(t)
	for _, place := range files {
		paths, err := filepath.Glob(place.pattern)
		if err != nil {
			t.Fatal(err)
		}
		objects := 0
		for _, path := range paths {
			for _, document := range kedas(t, path) {
				objects++
				object := parse(t, document)
				kind, ok := known[object["kind"].(string)]
				if !ok {
					t.Errorf("%s: nothing judges a %v", path, object["kind"])
					continue
				}
				if err := kind.judge(t.Context(), object); err != nil {
					t.Errorf("%s: %v", path, err)
				}
				if object["kind"] == "ScaledObject" {
					asTheWebhook(t, path, document)
				}
			}
		}
		if objects < place.objects {
			t.Errorf("%s has %d objects of KEDA, want at least %d", place.pattern, objects, place.objects)
		}
	}
}

// asTheWebhook checks what KEDA's admission does, as far as that takes no cluster.
func asTheWebhook(t *testing.T, path, document string) {
	t.Helper()
	var object kedav1alpha1.ScaledObject
	if err := yaml.UnmarshalStrict([]byte(document), &object); err != nil {
		t.Errorf("%s: %v", path, err)
		return
	}
	if err := kedav1alpha1.ValidateTriggers(object.Spec.Triggers); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	if err := kedav1alpha1.CheckReplicaCountBoundsAreValid(&object); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	if err := kedav1alpha1.CheckFallbackValid(&object); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// What judges has to be able to refuse.
func TestMistakesAreFound(t *testing.T) {
	known := kinds(t)
	good := strings.Join(kedas(t, filepath.Join(root, "pkg", "elastic", "scaledobject", "testdata", "realtime.yaml")), "")
	for name, test := range map[string]struct{ from, to, want string }{
		"a misspelt field":           {"cooldownPeriod:", "coolDownPeriod:", "there is no field spec.coolDownPeriod"},
		"a misspelt field of HPA":    {"stabilizationWindowSeconds: 300", "stabilisationWindowSeconds: 300", "stabilisationWindowSeconds"},
		"text where a number is":     {"pollingInterval: 30", `pollingInterval: "30"`, "spec.pollingInterval"},
		"a number where text is":     {`threshold: "1"`, "threshold: 1", "threshold"},
		"another word":               {"behavior: scalingModifiers", "behavior: keep", "spec.fallback.behavior"},
		"fewer at most than atleast": {"minReplicaCount: 1", "minReplicaCount: 9", "minReplicaCount must be less than or equal to maxReplicaCount"},
		"no target":                  {"  scaleTargetRef:\n    apiVersion: apps/v1\n    kind: Deployment\n    name: llm\n", "", "spec.scaleTargetRef"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(good, test.from) {
				t.Fatalf("there is no %q in\n%s", test.from, good)
			}
			err := known["ScaledObject"].judge(t.Context(), parse(t, strings.Replace(good, test.from, test.to, 1)))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
