package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// search finds hosts for the pods of a kind, one after the other. A host without room for one pod of the kind
// has none for the next: hosts only fill up.
//
// Nodes that are coming are taken as if they were opened now, the cheapest group per pod first. A plan that is
// made again while the nodes of the one before are coming then puts every pod where that one did, and no pod
// takes the node that another needs.
type search struct {
	kind *kind
	// allowed and usable say where the pods may go, besides what they ask for themselves.
	allowed func(*group) bool
	usable  func(*corev1.Node) bool
	// payers are the budgets from which a node that is opened is paid.
	payers []*budget
	// order has the live hosts. tried, reused and wished count the live, used and advised hosts without room, and
	// exhausted are the groups none of whose idle hosts has room.
	order                 []*host
	tried, reused, wished int
	exhausted             map[*group]bool
}

// search begins to look for hosts for count pods. Of live ones, those come first whose group would grow first for
// the pods, so that the other nodes are left to pods that need them.
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

// next finds a host on the plan for a pod, with count of them left, and opens one if none has room. What is
// advised, which may never be, comes last.
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

// firstFit finds the first host with room; those before tried have none.
func (s *search) firstFit(ctx context.Context, p *plan, tried *int, hosts int, at func(int) *host) (found, error) {
	for ; *tried < hosts; *tried++ {
		h := at(*tried)
		if left, err := s.try(ctx, p, h); left != nil || err != nil {
			return found{p, h, left}, err
		}
	}
	return found{}, nil
}

// grow opens a host in the best of the groups.
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

// try places a pod on a host; nil: it has no room.
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

// nextComing takes an idle host that is coming: first one that was asked for for pods like these, then one asked
// for for no kind that waits, then any.
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

// preferences are the coming nodes that pods of a kind take first, second and last.
func (p *planner) preferences(k *kind) []func(*host) bool {
	return []func(*host) bool{
		func(h *host) bool { return h.intended == k.id },
		func(h *host) bool { return !p.waiting[h.intended] },
		func(*host) bool { return true },
	}
}

// comingOf takes an idle host of a group that prefers accepts.
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

// noteAbort notes a miss on a live node that keeps the scheduler from trying any other node.
func (k *kind) noteAbort(h *host, miss *fit.Miss) {
	if miss.Aborts && h.stage == live && k.aborts == "" {
		k.aborts = fmt.Sprintf("node %s: %s; the scheduler gives up on the pod for this, so that no further node would help it", h.name, miss.Text)
	}
}
