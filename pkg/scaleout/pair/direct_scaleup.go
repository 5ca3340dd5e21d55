package pair

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// scaleUp is an entry in flight with the nodes that have come for it.
type scaleUp struct {
	v1alpha1.InFlight
	nodes []*view.NodeState
}

// scaleUps are the entries in flight, the oldest first. Each gets the oldest nodes that came after it and that no other has.
// Entries of placeholders, from before a change of the pairing, are left out.
func scaleUps(group *view.Group) []scaleUp {
	var ups []scaleUp
	for _, entry := range group.Object.Status.InFlight {
		if entry.Target > 0 && entry.Nodes > 0 {
			ups = append(ups, scaleUp{InFlight: entry})
		}
	}
	slices.SortStableFunc(ups, func(a, b scaleUp) int { return a.Since.Compare(b.Since.Time) })
	for i := range group.Nodes {
		node := &group.Nodes[i]
		for j := range ups {
			if ups[j].left() > 0 && !node.Object.CreationTimestamp.Before(&ups[j].Since) {
				ups[j].nodes = append(ups[j].nodes, node)
				break
			}
		}
	}
	return ups
}

// left counts the nodes that have not come.
func (u scaleUp) left() int { return int(u.Nodes) - len(u.nodes) }

// settled reports whether all nodes have come, are complete, and are protected if they should be.
func (u scaleUp) settled(g *growing) bool {
	return u.left() <= 0 && !slices.ContainsFunc(u.nodes, func(node *view.NodeState) bool {
		return !node.Complete() || g.s.fresh(g.group, node, true) && !protected(node.Object)
	})
}

// withheld is a node that offers none of its GPUs, or nil.
func (u scaleUp) withheld() *view.NodeState {
	if i := slices.IndexFunc(u.nodes, func(node *view.NodeState) bool { return node.Withheld != "" }); i >= 0 {
		return u.nodes[i]
	}
	return nil
}

// reason is that of a failure. Incomplete nodes cost money, nodes that did not come do not.
func (u scaleUp) reason() string {
	if u.left() == 0 || u.withheld() != nil {
		return v1alpha1.ReasonNodeIncomplete
	}
	return v1alpha1.ReasonScaleUpFailed
}

// expiry describes what has not come in time.
func (u scaleUp) expiry(g *growing) string {
	if left := u.left(); left > 0 {
		return fmt.Sprintf("%d of %d nodes that %s was asked for have not come within %s; its desired size is %d: see the Auto Scaling group's activity, and lower the size there if they are not wanted any more", left, u.Nodes, service(g.group.Object), g.timeout, g.eks.Desired)
	}
	for _, node := range u.nodes {
		if node.Complete() {
			continue
		}
		lacks := "it is not Ready"
		if len(node.Missing) > 0 {
			lacks = strings.Join(node.Missing, "; ")
		}
		return fmt.Sprintf("node %s is not complete after %s: %s", node.Object.Name, g.timeout, lacks)
	}
	return fmt.Sprintf("the nodes that %s was asked for could not be protected within %s", service(g.group.Object), g.timeout)
}
