package pair

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Holds are renewed in time, and not more often than necessary.
func TestHoldsAreRenewed(t *testing.T) {
	const protected, ends = "keep node node-0 for headroom\n", "end node node-0, which is empty\n"
	for name, test := range map[string]struct {
		until     string
		protected string
		cordoned  string
	}{
		"just now":               {heldFrom(0), "", ends},
		"an hour ago":            {heldFrom(-time.Hour), "", ends},
		"more than an hour ago":  {heldFrom(-61 * time.Minute), protected, ends + "keep node node-0 cordoned\n"},
		"a day ago":              {heldFrom(-24 * time.Hour), protected, ends + "keep node node-0 cordoned\n"},
		"by an earlier version":  {"", protected, ends + "keep node node-0 cordoned\n"},
		"by hand":                {"tomorrow", protected, ends + "keep node node-0 cordoned\n"},
		"by a clock gone astray": {heldFrom(24 * time.Hour), protected, ends + "keep node node-0 cordoned\n"},
	} {
		t.Run(name, func(t *testing.T) {
			set := func(c *calling) {
				node := c.group().Nodes[0].Object
				metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationHeldUntil, test.until)
				if test.until == "" {
					delete(node.Annotations, v1alpha1.AnnotationHeldUntil)
				}
			}
			c := newCalling()
			c.node(time.Minute, true)
			c.Decision.Headroom = []scaleout.HeadroomDecision{{Nodes: []string{"node-0"}}}
			c.group().Nodes[0].Object.Annotations = map[string]string{v1alpha1.AnnotationScaleDownDisabled: "true", v1alpha1.AnnotationProtected: forHeadroom}
			set(c)
			if got := story(c.decide()); got != test.protected {
				t.Errorf("for a protected node %q was decided, want %q", got, test.protected)
			}
			c = newCalling()
			c.group().Object.Spec.ScaleInAfter = nil
			mark(c.node(time.Hour, true), view.StepEnding, time.Hour)
			c.eks(func(n *view.Nodegroup) { n.Desired = 0 })
			set(c)
			if got := story(c.decide()); got != test.cordoned {
				t.Errorf("for a node that ends %q was decided, want %q", got, test.cordoned)
			}
		})
	}
}

// heldFrom is the end of a hold that began at that time.
func heldFrom(from time.Duration) string {
	node := &corev1.Node{}
	view.Hold(node, epoch.Add(from))
	return node.Annotations[v1alpha1.AnnotationHeldUntil]
}

func TestRenewalsAreFewInAPass(t *testing.T) {
	c := newCalling()
	for i := range maxRenewals + 10 {
		c.node(time.Minute, true)
		c.group().Nodes[i].Object.Annotations = map[string]string{v1alpha1.AnnotationScaleDownDisabled: "true", v1alpha1.AnnotationProtected: forHeadroom}
		c.Decision.Headroom = append(c.Decision.Headroom, scaleout.HeadroomDecision{Nodes: []string{fmt.Sprintf("node-%d", i)}})
	}
	if got := len(c.decide().Actions); got != maxRenewals {
		t.Errorf("%d nodes are held for another lease in a pass, want %d", got, maxRenewals)
	}
}

// A renewed hold keeps the mark of a node that ends, unless the node was taken back in the same pass.
func TestACordonIsHeldForAnotherLease(t *testing.T) {
	c := apiWith(t, interceptor.Funcs{}, markedNode(view.StepEnding))
	renewal := markNode{Node: markedNode(view.StepEnding), Mark: view.Mark{Step: view.StepEnding, Since: epoch}, Now: epoch.Add(time.Hour)}
	if err := do(t, c, renewal); err != nil {
		t.Fatal(err)
	}
	node := readNode(t, c)
	if view.HoldLapses(node, epoch.Add(2*time.Hour)) || view.MarkOf(node) != renewal.Mark || !node.Spec.Unschedulable {
		t.Errorf("the node has the annotations %v", node.Annotations)
	}
	if err := do(t, c, markNode{Node: node}, renewal); err != nil {
		t.Fatal(err)
	}
	if node := readNode(t, c); node.Spec.Unschedulable || len(node.Annotations) > 0 {
		t.Errorf("a node that was taken back has the annotations %v, and is cordoned: %t", node.Annotations, node.Spec.Unschedulable)
	}
}
