package policy

import (
	"os"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// The chart's policy applies to every node, so no machine may refuse it.
func TestTheChartsPolicyWorksOnEveryMachine(t *testing.T) {
	for chart, mps := range map[string]bool{"defaults": false, "everything": true} {
		text, err := os.ReadFile("../../deployments/helm/testdata/" + chart + ".golden.yaml")
		if err != nil {
			t.Fatal(err)
		}
		_, document, found := strings.Cut(string(text), "# Source: mica/templates/gpupolicy.yaml\n")
		if !found {
			t.Fatal("there is no policy")
		}
		document, _, _ = strings.Cut(document, "\n---\n")
		var rendered v1alpha1.GPUPolicy
		if err := yaml.UnmarshalStrict([]byte(document), &rendered); err != nil {
			t.Fatal(err)
		}
		if offered := rendered.Spec.Shapes.MPS != nil; offered != mps {
			t.Errorf("%s: MPS is offered: %t", chart, offered)
		}
		driver := fixture.Driver
		if len(rendered.Spec.Overrides) > 0 && !strings.Contains(rendered.Spec.Overrides[0].When, "'"+driver+"'") {
			driver = strings.Split(rendered.Spec.Overrides[0].When, "'")[1] // the chart was rendered for another name
		}
		compiled, err := Compile(driver, &rendered)
		if err != nil {
			t.Fatal(err)
		}
		for _, machine := range nodes.Names() {
			if policies, err := compiled.For(t.Context(), fixture.Node(t, machine)); err != nil {
				t.Errorf("%s: %v", machine, err)
			} else if policies[0].TimeSlicing == nil {
				t.Errorf("%s: got %+v", machine, policies[0])
			}
		}
	}
}
