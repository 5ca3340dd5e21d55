package scaleout

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// Live tells what pods find on the nodes that exist, as these are before anything is planned.
// It is for those who explain a decision: Plan does not need it, and is not slowed by it.
type Live struct {
	planner *planner
	kinds   map[string]*kind
	classes []LiveFit
}

// LiveFit is whether a pod of a kind fits on nodes that are alike.
type LiveFit struct {
	// Group is the nodes', or empty.
	Group string
	// Nodes are their names, in order.
	Nodes   []string
	Machine *fit.Machine
	// Miss is nil where a pod fits.
	Miss *fit.Miss
}

// NewLive sorts the nodes that are not starting: those that are count as their groups' templates.
func NewLive(s Snapshot) *Live {
	planner, kinds := newPlanner(s)
	l := &Live{planner: planner, kinds: map[string]*kind{}}
	for _, k := range kinds {
		l.kinds[k.id] = k
	}
	published := map[string][]*resourceapi.ResourceSlice{}
	for _, slice := range s.Slices {
		if slice.Spec.NodeName != nil {
			published[*slice.Spec.NodeName] = append(published[*slice.Spec.NodeName], slice)
		}
	}
	type class struct {
		group   string
		machine *fit.Machine
	}
	known := map[class]int{}
	for _, node := range s.Nodes {
		if node.Starting {
			continue
		}
		name := node.Object.Name
		c := class{node.Group, l.planner.cluster.Machine(fit.Node{Object: node.Object, Slices: published[name], Pods: node.Pods})}
		i, ok := known[c]
		if !ok {
			i = len(l.classes)
			known[c] = i
			l.classes = append(l.classes, LiveFit{Group: c.group, Machine: c.machine})
		}
		l.classes[i].Nodes = append(l.classes[i].Nodes, name)
	}
	for _, c := range l.classes {
		slices.Sort(c.Nodes)
	}
	return l
}

// Fits tries a kind of the snapshot's pending pods on every class of nodes.
func (l *Live) Fits(ctx context.Context, id string) ([]LiveFit, error) {
	k := l.kinds[id]
	if k == nil || k.sample == nil {
		return nil, nil
	}
	fits := slices.Clone(l.classes)
	for i := range fits {
		_, miss, err := l.planner.cluster.Place(ctx, fits[i].Machine, k.sample)
		if err != nil {
			return nil, fmt.Errorf("trying a pod of kind %s on node %s: %w", id, fits[i].Nodes[0], err)
		}
		fits[i].Miss = miss
	}
	return fits, nil
}
