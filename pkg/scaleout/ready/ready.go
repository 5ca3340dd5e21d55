// Package ready removes the startup taint from a new node once it offers all devices of its group's template, and reports nodes
// that do not get there. It never adds a taint.
package ready

import (
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// candidate is a node that was or will be opened.
type candidate struct {
	Node *corev1.Node
	// Group may be empty.
	Group string
	// Lacks are the missing parts. Empty: the node can be opened.
	Lacks []string
	// Waived are other drivers' pools that the node is opened without.
	Waived []string
	// Deadline is when the node is overdue.
	Deadline time.Time
	// KeptOff are the DaemonSets that the startup taint keeps off the node.
	KeptOff []*appsv1.DaemonSet
}

// closed reports whether the node has the startup taint.
func (c candidate) closed() bool { return view.HasStartupTaint(c.Node) }

func isStartup(t corev1.Taint) bool { return t.Key == v1alpha1.TaintStartup }

// candidates are the nodes of all groups, and nodes without a group that have the startup taint and need the driver's own pool
// only. Nodes that are being deleted are left out.
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
		if found[i].closed() && len(found[i].Lacks) > 0 {
			found[i].KeptOff = v.KeptOff(found[i].Node)
		}
	}
	return found
}

func ofNoGroup(driver string, v *view.View) []candidate {
	var found []candidate
	for _, n := range v.Nodes {
		c := candidate{Node: n.Object, Deadline: n.Object.CreationTimestamp.Add(v1alpha1.DefaultProvisionTimeout)}
		if n.Group != "" || n.Object.DeletionTimestamp != nil || !c.closed() {
			continue
		}
		missing := template.Missing(driver, nil, n.Object, slicesOf(n.Object, v.Slices))
		if n.Withheld != "" {
			missing = []string{n.Withheld}
		}
		c.Lacks = lacks(missing, view.IsReady(n.Object))
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

func slicesOf(node *corev1.Node, all []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	var own []*resourceapi.ResourceSlice
	for _, s := range all {
		if s.Spec.NodeName != nil && *s.Spec.NodeName == node.Name {
			own = append(own, s)
		}
	}
	return own
}
