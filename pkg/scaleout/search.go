package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// search finds hosts for the pods of a kind, one after the other. What a pod of the kind does
// not fit on, no other fits on either: hosts only fill up.
//
// Nodes that are coming are taken as if they were opened now, the cheapest group for each pod
// first. A plan that is made again while the nodes of the one before are coming then puts every
// pod where that one did, and no pod takes the node that another needs.
type search struct {
	*planner
	kind *kind
	// allowed and usable say where the pods may go, besides what they ask for themselves.
	allowed func(*group) bool
	usable  func(*corev1.Node) bool
	// payers are the budgets of which a node that is opened is paid.
	payers []*budget
	// order has the live hosts; tried, reused and wished count the live, the used and the advised
	// hosts that have no room, exhausted are the groups none of whose idle hosts has.
	order                 []*host
	tried, reused, wished int
	exhausted             map[*group]bool
}

// search begins to look for hosts for count pods: of live ones, those first whose group would
// grow first for them, so that the other nodes are left to pods that need them.
func (p *planner) search(ctx context.Context, k *kind, count int) (*search, error) {
	s := &search{planner: p, kind: k, order: p.live, exhausted: map[*group]bool{},
		allowed: anyGroup, usable: func(*corev1.Node) bool { return true }}
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

// next finds a host for a pod, of which count are left, and what is left of the host then. It
// opens one where none has room, and gives nil where none may be opened. What is advised, which
// may never be, comes last.
func (s *search) next(ctx context.Context, count int) (*host, *fit.Machine, error) {
	for _, find := range []func() (*host, *fit.Machine, error){
		func() (*host, *fit.Machine, error) { return s.firstFit(ctx, s.order, &s.tried) },
		func() (*host, *fit.Machine, error) { return s.firstFit(ctx, s.used, &s.reused) },
		func() (*host, *fit.Machine, error) { return s.nextComing(ctx, count) },
		func() (*host, *fit.Machine, error) { return s.grow(ctx, count, grown) },
		func() (*host, *fit.Machine, error) { return s.firstFit(ctx, s.advised, &s.wished) },
		func() (*host, *fit.Machine, error) { return s.grow(ctx, count, advised) },
	} {
		if h, left, err := find(); h != nil || err != nil {
			return h, left, err
		}
	}
	return nil, nil, nil
}

// firstFit finds the first host with room, of which those before tried have none.
func (s *search) firstFit(ctx context.Context, hosts []*host, tried *int) (*host, *fit.Machine, error) {
	for ; *tried < len(hosts); *tried++ {
		if left, err := s.try(ctx, hosts[*tried]); left != nil || err != nil {
			return hosts[*tried], left, err
		}
	}
	return nil, nil, nil
}

// grow opens a host in the best of the groups.
func (s *search) grow(ctx context.Context, count int, groups func(*group) bool) (*host, *fit.Machine, error) {
	h, err := s.open(ctx, s.kind, count, s.payers, func(g *group) bool {
		return groups(g) && s.allowed(g) && s.usable(g.Template.Node)
	})
	if err != nil || h == nil {
		return nil, nil, err
	}
	left, err := s.try(ctx, h)
	return h, left, err
}

// try places a pod on a host; without room it gives nil.
func (s *search) try(ctx context.Context, h *host) (*fit.Machine, error) {
	if !s.allowed(h.group) || !s.usable(h.object) {
		return nil, nil
	}
	left, miss, err := s.cluster.Place(ctx, h.machine, s.kind.example)
	if err != nil {
		return nil, err
	}
	if miss != nil {
		s.kind.noteAbort(h, miss)
		return nil, nil
	}
	return left, nil
}

// nextComing takes a host that is coming and that nobody is on: one that was asked for pods like these,
// or else for none that wait, or else any.
func (s *search) nextComing(ctx context.Context, count int) (*host, *fit.Machine, error) {
	if len(s.idle) == 0 {
		return nil, nil, nil
	}
	ranked, err := s.ranked(ctx, s.kind, count)
	if err != nil {
		return nil, nil, err
	}
	for _, prefers := range s.preferences(s.kind) {
		for _, g := range append(ranked, nil) {
			if h, left, err := s.comingOf(ctx, g, prefers); h != nil || err != nil {
				return h, left, err
			}
		}
	}
	return nil, nil, nil
}

// preferences are the nodes that are coming which pods of a kind take first, second and last.
func (p *planner) preferences(k *kind) []func(*host) bool {
	return []func(*host) bool{
		func(h *host) bool { return h.intended == k.id },
		func(h *host) bool { return !p.waiting[h.intended] },
		func(*host) bool { return true },
	}
}

// comingOf takes one of a group that prefers accepts.
func (s *search) comingOf(ctx context.Context, g *group, prefers func(*host) bool) (*host, *fit.Machine, error) {
	if s.exhausted[g] {
		return nil, nil, nil
	}
	fits := false
	for i, h := range s.idle[g] {
		left, err := s.try(ctx, h)
		if err != nil {
			return nil, nil, err
		}
		if left != nil && prefers(h) {
			s.takeIdle(g, i)
			return h, left, nil
		}
		fits = fits || left != nil
	}
	s.exhausted[g] = !fits
	return nil, nil, nil
}

// takeIdle moves an idle host to those that are used.
func (p *planner) takeIdle(g *group, i int) {
	p.used = append(p.used, p.idle[g][i])
	p.idle[g] = slices.Delete(p.idle[g], i, i+1)
	if len(p.idle[g]) == 0 {
		delete(p.idle, g)
	}
}

// noteAbort notes a miss on a node that exists which keeps the scheduler from looking at any other.
func (k *kind) noteAbort(h *host, miss *fit.Miss) {
	if miss.Aborts && h.stage == live && k.aborts == "" {
		k.aborts = fmt.Sprintf("node %s: %s; the scheduler gives up on the pod for this, so that no further node would help it", h.name, miss.Text)
	}
}
