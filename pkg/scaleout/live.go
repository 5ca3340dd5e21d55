package scaleout

import (
	"context"
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// LiveFit reports whether a pod of a kind fits on nodes that are alike.
type LiveFit struct {
	// Group is that of the nodes, or empty.
	Group string
	// Nodes are their names, in order.
	Nodes   []string
	Machine *fit.Machine
	// Withheld is that of Node.
	Withheld string
	// Miss is nil if a pod fits.
	Miss *fit.Miss
}

// LiveFits tries a pod of a kind, by its ID in the decision, on the nodes that are not starting, as they are before the
// plan. It explains a decision; Decide does not need it. The only error is that of the context.
func (p *Planner) LiveFits(ctx context.Context, id string) ([]LiveFit, error) {
	if _, err := p.Decide(ctx); err != nil {
		return nil, err
	}
	at := slices.IndexFunc(p.kinds, func(k *kind) bool { return k.id == id && k.example != nil })
	if at < 0 {
		return nil, nil
	}
	fits := p.liveClasses()
	for i := range fits {
		_, miss, err := p.start.shared.Place(ctx, fits[i].Machine, p.kinds[at].example)
		if err != nil {
			return nil, fmt.Errorf("trying a pod of kind %s on node %s: %w", id, fits[i].Nodes[0], err)
		}
		fits[i].Miss = miss
	}
	return fits, nil
}

// Allocates reports whether claims can be allocated on a machine, as fit.Shared does, for explanations.
func (p *Planner) Allocates(ctx context.Context, m *fit.Machine, unused bool, claims ...*resourceapi.ResourceClaim) bool {
	return p.start.shared.Allocates(ctx, m, unused, claims...)
}

// NewMachine is an empty new node of a group; nil if its template is unknown.
func (p *Planner) NewMachine(group string) *fit.Machine {
	for _, g := range p.start.groups {
		if g.Name == group {
			return g.empty
		}
	}
	return nil
}

// liveClasses groups live nodes that are alike before the plan.
func (p *Planner) liveClasses() []LiveFit {
	hosts := make(map[string]*host, len(p.start.live))
	for _, h := range p.start.live {
		hosts[h.name] = h
	}
	type class struct {
		group    string
		machine  *fit.Machine
		withheld string
	}
	known := map[class]int{}
	var classes []LiveFit
	for _, node := range p.Snapshot.Nodes {
		h := hosts[node.Object.Name]
		if h == nil {
			continue // it is starting
		}
		c := class{node.Group, p.start.machine(h), node.Withheld}
		i, met := known[c]
		if !met {
			i = len(classes)
			known[c] = i
			classes = append(classes, LiveFit{Group: c.group, Machine: c.machine, Withheld: c.withheld})
		}
		classes[i].Nodes = append(classes[i].Nodes, h.name)
	}
	for _, c := range classes {
		slices.Sort(c.Nodes)
	}
	return classes
}
