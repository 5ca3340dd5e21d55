package control

import (
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/leftover"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// The protections and cordons of a controller that dies expire with their lease, and not before.
func TestWhatADeadControllerHoldsExpires(t *testing.T) {
	for name, test := range map[string]struct {
		// nodes is the size of the group at first.
		nodes int
		held  func(*corev1.Node) bool
	}{
		"protected": {0, func(node *corev1.Node) bool { return node.Annotations[v1alpha1.AnnotationProtected] != "" }},
		"cordoned":  {leastNodes + 1, func(node *corev1.Node) bool { return node.Spec.Unschedulable }},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHistory(t, rand.New(rand.NewPCG(1, 7)))
			h.resize(test.nodes)
			node := h.untilHeld(test.held)
			h.clock.Step(119 * time.Minute)
			if view.HoldExpired(node, h.clock.Now()) {
				t.Fatalf("it has expired within two hours: %v", node.Annotations)
			}
			h.clock.Step(2 * time.Minute)
			if err := leftover.Nodes(t.Context(), h.client, h.clock.Now(), true); err != nil {
				t.Fatal(err)
			}
			if node := h.node(node.Name); view.Held(node) || test.held(node) || node.Annotations[v1alpha1.AnnotationScaleDownDisabled] != "" {
				t.Errorf("two hours after its controller has died, node %s is still held: %v", node.Name, node.Annotations)
			}
		})
	}
}

// untilHeld runs the controller until it holds a node.
func (h *history) untilHeld(held func(*corev1.Node) bool) *corev1.Node {
	h.t.Helper()
	for range 240 {
		h.step(15 * time.Second)
		for _, node := range all(h.world, &corev1.NodeList{}).Items {
			if held(&node) {
				return &node
			}
		}
	}
	h.t.Fatal("no node is held in an hour")
	return nil
}
