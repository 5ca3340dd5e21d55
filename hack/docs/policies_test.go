package docs

import (
	"os"
	"regexp"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/policy"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// A policy that is copied from the documentation has to work on every machine.
func TestDocumentedPoliciesWorkOnEveryMachine(t *testing.T) {
	text, err := os.ReadFile("../../docs/operate/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(examples) < 4 {
		t.Fatalf("found %d examples", len(examples))
	}
	for _, example := range examples {
		var documented v1alpha1.GPUPolicy
		if err := yaml.UnmarshalStrict(example[1], &documented); err != nil {
			t.Fatal(err)
		}
		compiled, err := policy.Compile(driverName, &documented)
		if err != nil {
			t.Fatal(err)
		}
		for _, machine := range nodes.Names() {
			if _, err := compiled.For(t.Context(), fixture.Node(t, machine)); err != nil {
				t.Errorf("%s: %v", machine, err)
			}
		}
	}
}
