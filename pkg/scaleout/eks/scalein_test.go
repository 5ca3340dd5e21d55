package eks

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/test/ekssim"
)

// noPods is an API server without any.
type noPods struct{ client.Reader }

func (noPods) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }

// bury removes nodes a pass after their machines have terminated, as the cloud provider does.
func (f *fleet) bury() {
	g, _ := f.Group(gpus.Nodegroup)
	f.nodes = slices.DeleteFunc(f.nodes, func(node *corev1.Node) bool {
		switch instance := "i-" + node.Name; g.Instances[instance] {
		case "Terminating":
			f.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Instances[instance] = "Terminated" })
		case "Terminated":
			f.Change(gpus.Nodegroup, func(g *ekssim.Group) { delete(g.Instances, instance) })
			if err := f.api.Delete(context.Background(), node); err != nil {
				f.t.Fatal(err)
			}
			return true
		}
		return false
	})
}

// shrink ends all claims but one, and sets scaleInAfter to a minute.
func (f *fleet) shrink() {
	f.needs = 1
	group := f.group()
	group.Spec.ScaleInAfter = &metav1.Duration{Duration: time.Minute}
	if err := f.api.Update(context.Background(), group); err != nil {
		f.t.Fatal(err)
	}
}

// The simulator lowers the size at each call, even for a machine that already terminates.
func TestAControllerThatIsKilledEndsEmptyNodesOnce(t *testing.T) {
	kills := 0
	for at := range 1000 {
		f := newFleet(t, 3, -1)
		f.run(14)
		f.shrink()
		f.doom.left = at
		f.run(26)
		killed := f.doom.spent()
		if d := f.desired(t); d != 1 || len(f.nodes) != 1 || f.nodes[0].Name != "node-0" {
			t.Errorf("killed at moment %d: a size of %d and %d nodes, want 1, node-0:\n%s", at, d, len(f.nodes), strings.Join(f.acted, "\n"))
		}
		if n := f.Updates(gpus.Nodegroup); n != 1 {
			t.Errorf("killed at moment %d: EKS was asked for a size %d times, want once, to grow", at, n)
		}
		f.checkClean(at)
		if !killed {
			break
		}
		kills++
	}
	// Of two nodes: empty, cordoned, ending and the call, before and after each.
	if kills < 16 {
		t.Errorf("the controller was killed at %d moments, which are too few to be all", kills)
	}
}
