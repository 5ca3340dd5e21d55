// Package ready is the gate through which a new node goes before pods and Cluster
// Autoscaler see it: it removes the startup taint once the node offers all that its group's
// template promises, and reports nodes that never get there. It never adds a taint.
package ready

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// candidate is a node that is or was to get through the gate.
type candidate struct {
	Node *corev1.Node
	// Group is empty for a node that is of none.
	Group string
	// Lacks is what the node still needs; empty: it may go through.
	Lacks []string
	// Waived is what it never got of other drivers, and goes through without.
	Waived []string
	// Deadline is when it should have gone through.
	Deadline time.Time
	// KeptOff are DaemonSets that the startup taint keeps off it.
	KeptOff []*appsv1.DaemonSet
}

// Closed tells whether the node has the startup taint.
func (c candidate) Closed() bool { return slices.ContainsFunc(c.Node.Spec.Taints, isStartup) }

func isStartup(t corev1.Taint) bool { return t.Key == v1alpha1.TaintStartup }

// candidates are the nodes of all groups, and those of none that have the startup taint; of
// these, the driver's own pool has to be complete. Nodes that are being deleted are left out.
func candidates(driver string, v *view.View) []candidate {
	var found []candidate
	for _, g := range v.GroupStates {
		for _, n := range g.Nodes {
			if n.Object.DeletionTimestamp != nil {
				continue
			}
			found = append(found, candidate{
				Node: n.Object, Group: g.Object.Name, Lacks: lacks(n.Missing, n.Ready), Waived: n.Waived,
				Deadline: n.Object.CreationTimestamp.Add(g.Object.ProvisionTimeout()),
			})
		}
	}
	found = append(found, ofNoGroup(driver, v)...)
	for i := range found {
		if found[i].Closed() && len(found[i].Lacks) > 0 {
			found[i].KeptOff = v.KeptOff(found[i].Node)
		}
	}
	return found
}

func ofNoGroup(driver string, v *view.View) []candidate {
	var found []candidate
	for _, n := range v.Nodes {
		c := candidate{Node: n.Object, Deadline: n.Object.CreationTimestamp.Add(v1alpha1.DefaultProvisionTimeout)}
		if n.Group != "" || n.Object.DeletionTimestamp != nil || !c.Closed() {
			continue
		}
		missing := template.Missing(driver, nil, n.Object, slicesOf(n.Object, v.Slices))
		if n.Withheld != "" {
			missing = []string{n.Withheld}
		}
		c.Lacks = lacks(missing, isReady(n.Object))
		found = append(found, c)
	}
	return found
}

func lacks(missing []string, ready bool) []string {
	if ready {
		return missing
	}
	return append([]string{"it is not Ready"}, missing...)
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func slicesOf(node *corev1.Node, all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	var own []*resourceapi.ResourceSlice
	for _, s := range all {
		if s.Spec.NodeName != nil && *s.Spec.NodeName == node.Name {
			own = append(own, s)
		}
	}
	return own
}
