package scaleout

import (
	"context"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// hostForSharer finds the host of the pod's claims, or else the host with the most room for pods like it. If there is
// none, it records why.
func (p *plan) hostForSharer(ctx context.Context, pod *pending, count int) (found, error) {
	k := pod.kind
	if pod.why = p.unusable(pod); pod.why != "" {
		return found{}, nil
	}
	for _, claim := range k.named {
		if h := p.hostOf(claim); h != nil {
			return p.join(ctx, pod, claim, h)
		}
	}
	payers := p.payers(pod.pod.Namespace)
	f, err := p.hostForFirst(ctx, k, count, payers)
	if err != nil {
		return found{}, err
	}
	if f.host == nil {
		pod.why = k.aborts
		return found{}, p.holdBack(ctx, k, []*pending{pod}, payers)
	}
	filling, err := f.plan.filling(ctx, f.plan.machine(f.host), k)
	if err != nil {
		return found{}, err
	}
	f.left = filling.machines[1]
	return f, nil
}

// hostForFirst finds or opens the host for the first of the pods. Advised hosts come last, as in a search.
func (p *plan) hostForFirst(ctx context.Context, k *kind, count int, payers []*budget) (found, error) {
	for _, find := range []func() (found, error){
		func() (found, error) { return p.bestHost(ctx, k, count) },
		func() (found, error) { return p.openBest(ctx, k, count, payers, grown) },
		func() (found, error) { return p.bestHostOf(ctx, p.advised.list(), k, count) },
		func() (found, error) { return p.openBest(ctx, k, count, payers, advised) },
	} {
		if f, err := find(); f.host != nil || err != nil {
			return f, err
		}
	}
	return found{}, nil
}

// unusable says why the pod cannot use its claims; empty: it can.
func (p *plan) unusable(pod *pending) string {
	var first *namedClaim
	for _, claim := range pod.kind.named {
		if why := p.whyFull(claim, pod.pod); why != "" {
			return why
		}
		h := p.hostOf(claim)
		if h == nil {
			continue
		}
		if first != nil && p.hostOf(first) != h {
			return fmt.Sprintf("claim %s is on %s and claim %s on %s: a pod that needs both has no node",
				first.name, p.hostOf(first).describe(), claim.name, h.describe())
		}
		first = claim
	}
	return ""
}

// join places the pod on the host of its claim. If it does not fit, join records why.
func (p *plan) join(ctx context.Context, pod *pending, claim *namedClaim, h *host) (found, error) {
	variant, err := p.variant(pod.kind)
	if err != nil {
		pod.why = err.Error()
		return found{}, nil
	}
	left, miss, err := p.shared.Place(ctx, p.machine(h), variant)
	if err != nil {
		return found{}, err
	}
	if miss != nil {
		pod.why = fmt.Sprintf("claim %s is on %s, which has no room for the pod: %s", claim.name, h.describe(), miss.Text)
		return found{}, nil
	}
	return found{p, h, left}, nil
}

// bestHost is the host with room for the most pods of the kind. Live hosts come before used, and these before idle
// ones: the scheduler does not wait for a node if there is room now.
func (p *plan) bestHost(ctx context.Context, k *kind, count int) (found, error) {
	idle := p.idleHosts()
	stages := [][]*host{p.live, p.used.list()}
	for _, prefers := range p.preferences(k) {
		stages = append(stages, slices.DeleteFunc(slices.Clone(idle), func(h *host) bool { return !prefers(h) }))
	}
	for _, stage := range stages {
		f, err := p.bestHostOf(ctx, stage, k, count)
		if err != nil {
			return found{}, err
		}
		if f.host == nil {
			continue
		}
		if p.isIdle(f.host) {
			f.plan = p.take(f.host)
		}
		return f, nil
	}
	return found{}, ctx.Err()
}

// bestHostOf is the first host with room for the most pods.
func (p *plan) bestHostOf(ctx context.Context, hosts []*host, k *kind, count int) (found, error) {
	best := found{plan: p}
	most := 0
	for _, h := range hosts {
		filling, err := p.filling(ctx, p.machine(h), k)
		if err != nil {
			return found{}, err
		}
		if filling.miss != nil {
			k.noteAbort(h, filling.miss)
		}
		if pods := min(filling.pods(), count); pods > most {
			best.host, most = h, pods
		}
	}
	return best, nil
}

// variant is a pod of the kind with the claims placed that the plan has placed.
func (p *plan) variant(k *kind) (*fit.Pod, error) {
	return p.withPlaced(k, func(claim *namedClaim) bool { return p.hostOf(claim) != nil })
}

// follower is a pod of the kind that joins another, with all claims placed.
func (p *planner) follower(k *kind) (*fit.Pod, error) {
	if len(k.named) == 0 {
		return k.example, nil
	}
	return p.withPlaced(k, func(*namedClaim) bool { return true })
}

// withPlaced is a pod of the kind with some of the named claims placed.
func (p *planner) withPlaced(k *kind, is func(*namedClaim) bool) (*fit.Pod, error) {
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
