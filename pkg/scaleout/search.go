package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// search finds hosts for pods of a kind, one after the other. It tries a host without room for one pod no more for the
// next: hosts only fill up.
//
// Coming nodes are used as if they were opened now, the cheapest group per pod first. While the nodes of one plan are
// coming, the next plan therefore places every pod on the same node, and no pod takes the node that another pod needs.
type search struct {
	kind *kind
	// allowed and usable report whether the pods may go to a group and to a node, besides what they ask for.
	allowed func(*group) bool
	usable  func(*corev1.Node) bool
	// payers are the budgets that pay for an opened node.
	payers []*budget
	// order has the live hosts. tried, reused and wished count the live, used and advised hosts without room. exhausted
	// are the groups without room on idle hosts.
	order                 []*host
	tried, reused, wished int
	exhausted             map[*group]bool
}

// search begins a search for count pods. Live hosts come in the order in which their groups would grow for the pods, so
// that other nodes stay free for pods that need them.
func (p *plan) search(ctx context.Context, k *kind, count int) (*search, error) {
	s := &search{kind: k, order: p.live, exhausted: map[*group]bool{}, allowed: anyGroup, usable: anywhere}
	if len(p.live) == 0 || len(p.groups) == 0 {
		return s, nil
	}
	ranked, err := p.ranked(ctx, k, count)
	if err != nil {
		return nil, err
	}
	rank := map[*group]int{nil: len(ranked)}
	for i, g := range ranked {
		rank[g] = i
	}
	s.order = slices.Clone(p.live)
	slices.SortStableFunc(s.order, func(a, b *host) int { return cmp.Compare(rank[a.group], rank[b.group]) })
	return s, nil
}

// next finds a host for the first of count pods, and opens one if none has room. Advised hosts come last, because they
// may never exist.
func (s *search) next(ctx context.Context, p *plan, count int) (found, error) {
	for _, find := range []func() (found, error){
		func() (found, error) {
			return s.firstFit(ctx, p, &s.tried, len(s.order), func(i int) *host { return s.order[i] })
		},
		func() (found, error) { return s.firstFit(ctx, p, &s.reused, p.used.len, p.used.at) },
		func() (found, error) { return s.nextComing(ctx, p, count) },
		func() (found, error) { return s.grow(ctx, p, count, grown) },
		func() (found, error) { return s.firstFit(ctx, p, &s.wished, p.advised.len, p.advised.at) },
		func() (found, error) { return s.grow(ctx, p, count, advised) },
	} {
		if f, err := find(); f.host != nil || err != nil {
			return f, err
		}
	}
	return found{}, nil
}

// firstFit finds the first host with room. Those before tried have none.
func (s *search) firstFit(ctx context.Context, p *plan, tried *int, hosts int, at func(int) *host) (found, error) {
	for ; *tried < hosts; *tried++ {
		h := at(*tried)
		if left, err := s.try(ctx, p, h); left != nil || err != nil {
			return found{p, h, left}, err
		}
	}
	return found{}, nil
}

// grow opens a host of the best group.
func (s *search) grow(ctx context.Context, p *plan, count int, groups func(*group) bool) (found, error) {
	f, err := p.openBest(ctx, s.kind, count, s.payers, func(g *group) bool {
		return groups(g) && s.allowed(g) && s.usable(g.Template.Node)
	})
	if err != nil || f.host == nil {
		return found{}, err
	}
	f.left, err = s.try(ctx, f.plan, f.host)
	return f, err
}

// try returns the host's machine with a pod; nil: it has no room.
func (s *search) try(ctx context.Context, p *plan, h *host) (*fit.Machine, error) {
	if !s.allowed(h.group) || !s.usable(h.object) {
		return nil, nil
	}
	left, miss, err := p.shared.Place(ctx, p.machine(h), s.kind.example)
	if err != nil {
		return nil, err
	}
	if miss != nil {
		s.kind.noteAbort(h, miss)
		return nil, nil
	}
	return left, nil
}

// nextComing takes an idle host: first one that was requested for pods like these, then one that was requested for no
// pending pods, then any.
func (s *search) nextComing(ctx context.Context, p *plan, count int) (found, error) {
	if p.idle == 0 {
		return found{}, nil
	}
	ranked, err := p.ranked(ctx, s.kind, count)
	if err != nil {
		return found{}, err
	}
	for _, prefers := range p.preferences(s.kind) {
		for _, g := range append(ranked, nil) {
			if f, err := s.comingOf(ctx, p, g, prefers); f.host != nil || err != nil {
				return f, err
			}
		}
	}
	return found{}, nil
}

// preferences select the idle hosts that pods of a kind take first, second and last.
func (p *planner) preferences(k *kind) []func(*host) bool {
	return []func(*host) bool{
		func(h *host) bool { return h.intended == k.id },
		func(h *host) bool { return !p.waiting[h.intended] },
		func(*host) bool { return true },
	}
}

// comingOf takes an idle host of a group that is preferred.
func (s *search) comingOf(ctx context.Context, p *plan, g *group, prefers func(*host) bool) (found, error) {
	if s.exhausted[g] {
		return found{}, nil
	}
	fits := false
	for _, h := range p.coming[g] {
		if !p.isIdle(h) {
			continue
		}
		left, err := s.try(ctx, p, h)
		if err != nil {
			return found{}, err
		}
		if left != nil && prefers(h) {
			return found{p.take(h), h, left}, nil
		}
		fits = fits || left != nil
	}
	s.exhausted[g] = !fits
	return found{}, nil
}

// noteAbort records a miss on a live node that ends the scheduler's search for a node.
func (k *kind) noteAbort(h *host, miss *fit.Miss) {
	if miss.Aborts && h.stage == live && k.aborts == "" {
		k.aborts = fmt.Sprintf("node %s: %s; the scheduler gives up on the pod for this, so that no further node would help it", h.name, miss.Text)
	}
}
