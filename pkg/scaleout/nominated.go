package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// nominee is a batch of one pod that the scheduler has nominated for a node: the scheduler counts
// it there for all pods that are not more urgent.
func (p *planner) nominee(pod *pending, on *host) batch {
	return batch{kind: pod.kind, priority: priority(pod.pod), pods: []*pending{pod}, payers: p.payers(pod.pod.Namespace), on: on}
}

// nomineesFirst orders batches by need, those with a nominee first among those as urgent.
func nomineesFirst(a, b batch) int {
	return cmp.Or(
		cmp.Compare(b.priority, a.priority),
		falseFirst(a.on == nil, b.on == nil),
		byNeed(a.pods[0], b.pods[0]),
	)
}

// placeNominee puts a nominated pod on its node. If the node has no room yet, the pod is held.
func (p *planner) placeNominee(ctx context.Context, b batch) error {
	pod := b.pods[0]
	as, left, err := p.fitNominee(ctx, pod, b.on)
	if err != nil {
		return err
	}
	if left == nil {
		pod.hold = Hold{Why: fmt.Sprintf("the scheduler makes room for it on %s", b.on.describe())}
		pod.why = pod.hold.Why
		return nil
	}
	if i := slices.Index(p.idle[b.on.group], b.on); i >= 0 {
		p.takeIdle(b.on.group, i)
	}
	p.putSharing(b.on, pod, as, left)
	return nil
}

// fitNominee is what is left of the node with the pod, and the variant of its kind that the pod is
// there; nil: it does not fit.
func (p *planner) fitNominee(ctx context.Context, pod *pending, on *host) (*fit.Pod, *fit.Machine, error) {
	if unusable(pod) != "" {
		return nil, nil, nil
	}
	for _, claim := range pod.kind.named {
		if claim.host != nil && claim.host != on {
			return nil, nil, nil
		}
	}
	as, err := p.variant(pod.kind)
	if err != nil {
		return nil, nil, nil
	}
	left, miss, err := p.cluster.Place(ctx, on.machine, as)
	if miss != nil {
		left = nil
	}
	return as, left, err
}

// node is the live node of that name, or the one that is starting; nil: there is none.
func (p *planner) node(name string) *host {
	if name == "" {
		return nil // that of nodes which do not exist yet
	}
	named := func(h *host) bool { return h.name == name }
	if i := slices.IndexFunc(p.live, named); i >= 0 {
		return p.live[i]
	}
	for _, starting := range p.idle {
		if i := slices.IndexFunc(starting, named); i >= 0 {
			return starting[i]
		}
	}
	return nil
}
