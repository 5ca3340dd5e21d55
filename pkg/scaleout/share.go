package scaleout

import (
	"context"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// hostForSharer finds the host where the pod's claims are, or where there is the most room for
// its like, and what is left of it with the pod; nil: the pod notes why.
func (p *planner) hostForSharer(ctx context.Context, pod *pending, count int) (*host, *fit.Machine, error) {
	k := pod.kind
	if pod.why = unusable(pod); pod.why != "" {
		return nil, nil, nil
	}
	for _, claim := range k.named {
		if claim.host != nil {
			left, err := p.join(ctx, pod, claim)
			return claim.host, left, err
		}
	}
	payers := p.payers(pod.pod.Namespace)
	h, err := p.hostForFirst(ctx, k, count, payers)
	if err != nil {
		return nil, nil, err
	}
	if h == nil {
		pod.why = k.aborts
		return nil, nil, p.holdBack(ctx, k, []*pending{pod}, payers)
	}
	filling, err := p.filling(ctx, h.machine, k)
	if err != nil {
		return nil, nil, err
	}
	return h, filling.machines[1], nil
}

// hostForFirst finds, or opens, the host for the first of the pods; nil: there is none. What is
// advised comes last, as in a search.
func (p *planner) hostForFirst(ctx context.Context, k *kind, count int, payers []*budget) (*host, error) {
	for _, find := range []func() (*host, error){
		func() (*host, error) { return p.bestHost(ctx, k, count) },
		func() (*host, error) { return p.open(ctx, k, count, payers, grown) },
		func() (*host, error) { return p.bestHostOf(ctx, p.advised, k, count) },
		func() (*host, error) { return p.open(ctx, k, count, payers, advised) },
	} {
		if h, err := find(); h != nil || err != nil {
			return h, err
		}
	}
	return nil, nil
}

// unusable says why one of the pod's claims cannot be used by it, or nothing.
func unusable(pod *pending) string {
	var at *namedClaim
	for _, claim := range pod.kind.named {
		if why := claim.full(pod.pod); why != "" {
			return why
		}
		if claim.host == nil {
			continue
		}
		if at != nil && at.host != claim.host {
			return fmt.Sprintf("claim %s is on %s and claim %s on %s: a pod that needs both has no node",
				at.name, at.host.describe(), claim.name, claim.host.describe())
		}
		at = claim
	}
	return ""
}

// join is what is left of the host of a pod's claim with the pod; nil: the pod notes why.
func (p *planner) join(ctx context.Context, pod *pending, claim *namedClaim) (*fit.Machine, error) {
	variant, err := p.variant(pod.kind)
	if err != nil {
		pod.why = err.Error()
		return nil, nil
	}
	left, miss, err := p.cluster.Place(ctx, claim.host.machine, variant)
	if err != nil {
		return nil, err
	}
	if miss != nil {
		pod.why = fmt.Sprintf("claim %s is on %s, which has no room for the pod: %s", claim.name, claim.host.describe(), miss.Text)
	}
	return left, nil
}

// bestHost is the host that takes the most pods of the kind, of the earliest stage of which one
// takes any: the scheduler does not wait for a node where there is room now.
func (p *planner) bestHost(ctx context.Context, k *kind, count int) (*host, error) {
	idle := slices.Clone(p.idle[nil])
	for _, g := range p.groups {
		idle = append(idle, p.idle[g]...)
	}
	stages := [][]*host{p.live, p.used}
	for _, prefers := range p.preferences(k) {
		stages = append(stages, slices.DeleteFunc(slices.Clone(idle), func(h *host) bool { return !prefers(h) }))
	}
	for _, stage := range stages {
		best, err := p.bestHostOf(ctx, stage, k, count)
		if err != nil {
			return nil, err
		}
		if best == nil {
			continue
		}
		if i := slices.Index(p.idle[best.group], best); i >= 0 {
			p.takeIdle(best.group, i)
		}
		return best, nil
	}
	return nil, ctx.Err()
}

// bestHostOf is the first host that takes the most pods; nil where none takes any.
func (p *planner) bestHostOf(ctx context.Context, hosts []*host, k *kind, count int) (*host, error) {
	var best *host
	most := 0
	for _, h := range hosts {
		filling, err := p.filling(ctx, h.machine, k)
		if err != nil {
			return nil, err
		}
		if filling.miss != nil {
			k.noteAbort(h, filling.miss)
		}
		if pods := min(filling.pods(), count); pods > most {
			best, most = h, pods
		}
	}
	return best, nil
}

// variant is a pod of the kind with the claims placed that are.
func (p *planner) variant(k *kind) (*fit.Pod, error) {
	return p.placed(k, func(claim *namedClaim) bool { return claim.host != nil })
}

// follower is a pod of the kind that comes to where another is.
func (p *planner) follower(k *kind) (*fit.Pod, error) {
	if len(k.named) == 0 {
		return k.example, nil
	}
	return p.placed(k, func(*namedClaim) bool { return true })
}

// placed is a pod of the kind with those named claims placed that is says are.
func (p *planner) placed(k *kind, is func(*namedClaim) bool) (*fit.Pod, error) {
	claims := slices.Clone(k.claims)
	key := make([]byte, len(claims))
	for i, entry := range claims {
		if entry.Shared && is(p.claims.named[objectName(entry.Claim)]) {
			claims[i].Placed = true
			key[i] = 1
		}
	}
	if known := k.variants[string(key)]; known != nil {
		return known, nil
	}
	made, err := p.cluster.Pod(k.pods[0].pod, claims)
	if err != nil {
		return nil, err
	}
	if k.variants == nil {
		k.variants = map[string]*fit.Pod{}
	}
	k.variants[string(key)] = made
	return made, nil
}
