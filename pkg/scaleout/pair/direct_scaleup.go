package pair

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// scaleUp is a number of nodes that EKS was asked for, with those that have come.
type scaleUp struct {
	v1alpha1.InFlight
	nodes []*view.NodeState
}

// scaleUps are what is in flight, the oldest first, each with the oldest nodes that came
// after it and are no other's. What placeholders have asked for, before the group's pairing
// was changed, is not among them.
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

// left is how many nodes have not come.
func (u scaleUp) left() int { return int(u.Nodes) - len(u.nodes) }

// settled tells that all nodes have come, offer all that they should, and are protected
// where they are to be.
func (u scaleUp) settled(g *growing) bool {
	if u.left() > 0 {
		return false
	}
	for _, node := range u.nodes {
		if !node.Complete() || g.s.fresh(g.group, node, true) && !protected(node.Object) {
			return false
		}
	}
	return true
}

// withheld is a node that has come and offers none of its GPUs, nil if there is none.
func (u scaleUp) withheld() *view.NodeState {
	if i := slices.IndexFunc(u.nodes, func(node *view.NodeState) bool { return node.Withheld != "" }); i >= 0 {
		return u.nodes[i]
	}
	return nil
}

// reason is that of a failure: nodes that came and are not complete are paid for, others are not.
func (u scaleUp) reason() string {
	if u.left() == 0 || u.withheld() != nil {
		return v1alpha1.ReasonNodeIncomplete
	}
	return v1alpha1.ReasonScaleUpFailed
}

// expiry is what has not come in time.
func (u scaleUp) expiry(g *growing) string {
	if left := u.left(); left > 0 {
		return fmt.Sprintf("of %d nodes that %s was asked for %d have not come within %s; its desired size is %d: see the Auto Scaling group's activity, and lower the size there if they are not wanted any more", u.Nodes, service(g.group.Object), left, g.timeout, g.eks.Desired)
	}
	for _, node := range u.nodes {
		if node.Complete() {
			continue
		}
		lacks := "it is not Ready"
		if len(node.Missing) > 0 {
			lacks = strings.Join(node.Missing, "; ")
		}
		return fmt.Sprintf("node %s does not offer within %s what it should: %s", node.Object.Name, g.timeout, lacks)
	}
	return fmt.Sprintf("the nodes that %s was asked for could not be protected within %s", service(g.group.Object), g.timeout)
}
