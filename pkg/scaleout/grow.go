package scaleout

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// found is a host for a pod, and the plan that has it. host is nil if no host has room.
type found struct {
	plan *plan
	host *host
	// left is the host's machine with the pod.
	left *fit.Machine
}

// openBest asks for a node of the best group for count pods of a kind, at the expense of payers. It does not set left.
func (p *plan) openBest(ctx context.Context, k *kind, count int, payers []*budget, allowed func(*group) bool) (found, error) {
	g, err := p.choose(ctx, k, count, payers, allowed)
	if err != nil || g == nil {
		return found{}, err
	}
	next, h := p.open(g, payers)
	return found{plan: next, host: h}, nil
}

// anyGroup allows all groups, grown those that are scaled automatically, advised those that only an administrator scales.
func anyGroup(*group) bool  { return true }
func grown(g *group) bool   { return !g.Advised }
func advised(g *group) bool { return g.Advised }

// choose returns the group to grow for count pods of a kind; nil: none can grow.
func (p *plan) choose(ctx context.Context, k *kind, count int, payers []*budget, allowed func(*group) bool) (*group, error) {
	var best offer
	if k.aborts != "" {
		return nil, nil
	}
	for _, g := range p.groups {
		if g.barred() != "" || !allowed(g) {
			continue
		}
		offered, err := p.offer(ctx, g, k, count)
		if err != nil {
			return nil, err
		}
		switch b, _ := p.refused(payers, g); {
		case offered.takes == 0:
		case p.full(g):
			k.noteFull(g)
		case b == nil && (best.group == nil || offered.compare(best) < 0):
			best = offered
		}
	}
	return best.group, ctx.Err()
}

// ranked are the groups in the order in which they would grow for count pods. Groups on which no pod fits, and those
// with an unknown template, come last.
func (p *plan) ranked(ctx context.Context, k *kind, count int) ([]*group, error) {
	offers := make([]offer, 0, len(p.groups))
	var others []*group
	for _, g := range p.groups {
		if g.empty == nil {
			others = append(others, g)
			continue
		}
		offered, err := p.offer(ctx, g, k, count)
		if err != nil {
			return nil, err
		}
		if offered.takes == 0 {
			others = append(others, g)
			continue
		}
		offers = append(offers, offered)
	}
	slices.SortFunc(offers, offer.compare)
	ranked := make([]*group, 0, len(p.groups)+1)
	for _, offered := range offers {
		ranked = append(ranked, offered.group)
	}
	return append(ranked, others...), nil
}

// offer is a new node for pods of a kind.
type offer struct {
	group *group
	// takes is how many of the pending pods it takes, rest how many units are then free.
	takes int
	rest  func() int
	// together reports that the pods have to be on one node.
	together bool
}

// offer is a new node of the group for count pods.
func (p *plan) offer(ctx context.Context, g *group, k *kind, count int) (offer, error) {
	filling, err := p.filling(ctx, g.empty, k)
	if err != nil {
		return offer{}, err
	}
	takes := min(filling.pods(), count)
	rest := func() int { return p.rest(filling.machines[takes]) }
	return offer{group: g, takes: takes, rest: rest, together: len(k.named) > 0}, nil
}

// compare is negative if o is better than other. Better is an automatically scaled group, then a lower price per pod, less
// left over, more pods at once, and the smaller machine.
func (o offer) compare(other offer) int {
	if order := falseFirst(o.group.Advised, other.group.Advised); order != 0 {
		return order
	}
	if o.together && o.takes != other.takes {
		return cmp.Compare(other.takes, o.takes)
	}
	if order := o.comparePrice(other); order != 0 {
		return order
	}
	return cmp.Or(
		cmp.Compare(o.rest(), other.rest()),
		cmp.Compare(other.takes, o.takes),
		cpu(o.group).Cmp(*cpu(other.group)),
		cmp.Compare(o.group.Name, other.group.Name),
	)
}

func cpu(g *group) *resource.Quantity { return g.Template.Node.Status.Allocatable.Cpu() }

// comparePrice compares the prices of one pod per hour, exactly.
func (o offer) comparePrice(other offer) int {
	mine, theirs := o.group.PricePerHour, other.group.PricePerHour
	if mine == nil || theirs == nil {
		return falseFirst(mine == nil, theirs == nil)
	}
	high, low := bits.Mul64(nano(mine), uint64(other.takes))
	otherHigh, otherLow := bits.Mul64(nano(theirs), uint64(o.takes))
	return cmp.Or(cmp.Compare(high, otherHigh), cmp.Compare(low, otherLow))
}

// nano is a price in billionths; 0 if it is negative.
func nano(price *resource.Quantity) uint64 { return uint64(max(price.ScaledValue(resource.Nano), 0)) }
