package helm_test

import (
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	gpupolicy "github.com/mica-gpu/mica/pkg/policy"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// The chart's own policy is for every node, so none may refuse it.
func TestTheDefaultPolicyWorksOnEveryMachine(t *testing.T) {
	for _, mps := range []string{"false", "true"} {
		_, document, found := strings.Cut(render(t, "--namespace", "mica", "--set", "mps.enabled="+mps), "# Source: mica/templates/gpupolicy.yaml\n")
		if !found {
			t.Fatal("there is no policy")
		}
		document, _, _ = strings.Cut(document, "\n---\n")
		var rendered v1alpha1.GPUPolicy
		if err := yaml.UnmarshalStrict([]byte(document), &rendered); err != nil {
			t.Fatal(err)
		}
		compiled, err := gpupolicy.Compile("gpu.nvidia.com", &rendered)
		if err != nil {
			t.Fatal(err)
		}
		for _, machine := range nodes.Names() {
			policies, err := compiled.For(t.Context(), fixture.Node(t, machine))
			if err != nil {
				t.Errorf("%s: %v", machine, err)
			} else if policies[0].TimeSlicing == nil || policies[0].MPS != nil && mps == "false" {
				t.Errorf("%s: got %+v", machine, policies[0])
			}
		}
	}
}
