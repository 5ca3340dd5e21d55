package scaleout

import (
	"cmp"
	"slices"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// group is a node group.
type group struct {
	*Group
	// index is its index in the snapshot.
	index int
	// empty is a new node; nil if the group has no template.
	empty *fit.Machine
}

func (p *planner) readGroups(all []Group) []*group {
	var groups []*group
	for i := range all {
		g := &group{Group: &all[i], index: i}
		if t := g.Template; t != nil {
			g.empty = p.cluster.Machine(fit.Node{Object: t.Node, Slices: t.Slices, Pods: g.Pods})
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.Name, b.Name) })
	return groups
}

// barred says why the group may not grow for any pod; empty: it may.
func (g *group) barred() string {
	switch {
	case g.empty == nil && g.Unknown == "":
		return "it is not known what a new node has"
	case g.empty == nil:
		return g.Unknown
	case g.Closed != "":
		return g.Closed
	case g.Max != nil && g.Size >= *g.Max:
		return "at its maximum of " + excerpt.Count(*g.Max, "node")
	}
	return ""
}
