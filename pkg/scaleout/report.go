package scaleout

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/excerpt"
)

// growth are the opened nodes, the most urgent groups first.
func (m *placing) growth() []Growth {
	var growth []Growth
	at := map[*group]int{}
	for _, h := range slices.Concat(m.plan.used.list(), m.plan.advised.list()) {
		if h.stage != opened {
			continue
		}
		i, known := at[h.group]
		if !known {
			i = len(growth)
			at[h.group] = i
			growth = append(growth, Growth{Group: h.group.Name})
		}
		growth[i].Nodes = append(growth[i].Nodes, *m.asks[h])
	}
	return growth
}

// report is the decision on each kind.
func (p *plan) report(ctx context.Context, kinds []*kind) ([]Kind, error) {
	var all []Kind
	for _, k := range kinds {
		reported := Kind{ID: k.id, Example: k.example, Problem: k.problem}
		for _, pod := range k.pods {
			reported.Pods = append(reported.Pods, pod.decision())
		}
		if k.example != nil {
			reported.Groups = make([]GroupFit, len(p.groups))
			for _, g := range p.groups {
				found, err := p.groupFit(ctx, g, k)
				if err != nil {
					return nil, err
				}
				reported.Groups[g.index] = found
			}
		}
		all = append(all, reported)
	}
	return all, nil
}

// groupFit reports whether a group could run pods of a kind.
func (p *plan) groupFit(ctx context.Context, g *group, k *kind) (GroupFit, error) {
	found := GroupFit{Group: g.Name, Blocked: g.barred()}
	if g.empty == nil {
		return found, nil
	}
	filling, err := p.filling(ctx, g.empty, k)
	if err != nil {
		return GroupFit{}, err
	}
	found.Miss, found.PerNode = filling.miss, filling.pods()
	if found.Blocked == "" && k.full[g] {
		found.Blocked = fmt.Sprintf("at its maximum of %s, and this plan asks for %d of them", excerpt.Count(*g.Max, "node"), p.opened[g.index])
	}
	return found, nil
}

// decision is that on the pod.
func (p *pending) decision() PodDecision {
	d := PodDecision{
		Pod: types.NamespacedName{Namespace: p.pod.Namespace, Name: p.pod.Name}, UID: p.pod.UID,
		Outcome: Blocked, Why: p.why,
	}
	switch {
	case p.hold.Unused:
		d.Outcome = Unused
	case p.hold.Why != "":
		d.Outcome = Held
	case p.overBudget != nil:
		d.Outcome = OverBudget
	}
	if p.host == nil {
		return d
	}
	d.Outcome = p.host.outcome()
	if p.host.stage == live {
		d.Node = p.host.name
	}
	if p.host.group != nil {
		d.Group = p.host.group.Name
	}
	return d
}
