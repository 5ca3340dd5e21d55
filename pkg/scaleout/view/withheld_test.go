package view

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const plugin = "a device plugin gives out this node's GPUs"

// A node whose GPUs a device plugin gives out is no capacity, and none that is to come; nor would
// another one be, unless there is one that shows otherwise.
func TestANodeThatWithholdsItsGPUs(t *testing.T) {
	g := testGroup("g", pool("g"), typed("g6.12xlarge"))
	for name, test := range map[string]struct {
		publishes, another bool
		missing, closed    string
	}{
		"alone":                          {missing: "offers none of its GPUs: " + plugin, closed: "a new node would be like n1, which offers none of its GPUs: " + plugin},
		"beside one that offers":         {another: true, missing: "offers none of its GPUs: " + plugin},
		"it publishes, and says so soon": {publishes: true},
	} {
		t.Run(name, func(t *testing.T) {
			var o objects
			if test.publishes {
				o.machine(t, g, "g6.12xlarge", "n1", time.Minute)
			} else {
				o.machine(t, g, "g6.12xlarge", "n1", time.Minute, withoutSlices)
			}
			if test.another {
				o.machine(t, g, "g6.12xlarge", "n2", time.Minute)
			}
			o.gpuNodes.Items = []v1alpha1.GPUNode{{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Withheld: plugin}}
			v := look(&o, g)
			state, node := v.GroupStates[0].Nodes[0], v.Nodes[0]
			if node.Starting || node.Withheld != test.missing || state.Withheld != test.missing {
				t.Errorf("the planner is told starting %t, withheld %q, want %q", node.Starting, node.Withheld, test.missing)
			}
			if test.missing != "" && (len(state.Missing) != 1 || state.Missing[0] != test.missing) || state.Complete() != test.publishes {
				t.Errorf("the node lacks %q, want %q", state.Missing, test.missing)
			}
			if v.Groups[0].Closed != test.closed || v.GroupStates[0].Withheld != test.closed {
				t.Errorf("the group is closed for %q, want %q", v.Groups[0].Closed, test.closed)
			}
		})
	}
}
