package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// nominee is a batch of one pod that the scheduler has nominated for a node. For all pods that are not more urgent, the
// scheduler counts it as if it were there.
func (p *planner) nominee(pod *pending, on *host) batch {
	return batch{kind: pod.kind, priority: priority(pod.pod), pods: []*pending{pod}, payers: p.payers(pod.pod.Namespace), on: on}
}

// nomineesFirst orders batches by need, and nominees first among those as urgent.
func nomineesFirst(a, b batch) int {
	return cmp.Or(
		cmp.Compare(b.priority, a.priority),
		falseFirst(a.on == nil, b.on == nil),
		byNeed(a.pods[0], b.pods[0]),
	)
}

// nominee places a nominated pod on its node. If the node has no room yet, the pod is held.
func (m *placing) nominee(ctx context.Context, b batch) error {
	pod := b.pods[0]
	f, err := m.plan.fitNominee(ctx, pod, b.on)
	if err != nil {
		return err
	}
	if f.left == nil {
		pod.hold = Hold{Why: fmt.Sprintf("the scheduler makes room for it on %s", b.on.describe())}
		pod.why = pod.hold.Why
		return nil
	}
	m.putSharing(f, pod)
	return nil
}

// fitNominee places the pod on the node; found.left is nil if it does not fit.
func (p *plan) fitNominee(ctx context.Context, pod *pending, on *host) (found, error) {
	if p.unusable(pod) != "" {
		return found{}, nil
	}
	for _, claim := range pod.kind.named {
		if h := p.hostOf(claim); h != nil && h != on {
			return found{}, nil
		}
	}
	as, err := p.variant(pod.kind)
	if err != nil {
		return found{}, nil
	}
	left, miss, err := p.shared.Place(ctx, p.machine(on), as)
	if err != nil || miss != nil {
		return found{}, err
	}
	if p.isIdle(on) {
		p = p.take(on)
	}
	return found{p, on, left}, nil
}

// node is the live or starting node with this name, or nil.
func (p *planner) node(name string) *host {
	if name == "" {
		return nil // nodes that do not exist yet have no name
	}
	named := func(h *host) bool { return h.name == name }
	if i := slices.IndexFunc(p.live, named); i >= 0 {
		return p.live[i]
	}
	for _, starting := range p.coming {
		if i := slices.IndexFunc(starting, named); i >= 0 {
			return starting[i]
		}
	}
	return nil
}
