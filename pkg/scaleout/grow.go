package scaleout

import (
	"cmp"
	"context"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

// open asks for a node of the group that is best for a kind, of which count pods are left, at the
// expense of payers; nil: none can grow.
func (p *planner) open(ctx context.Context, k *kind, count int, payers []*budget, allowed func(*group) bool) (*host, error) {
	g, err := p.choose(ctx, k, count, payers, allowed)
	if err != nil || g == nil {
		return nil, err
	}
	g.opened++
	h := &host{stage: opened, object: g.Template.Node, group: g, machine: g.empty, slices: g.Template.Slices, gpus: g.GPUs}
	p.chargeOpened(h, payers)
	if g.Advised {
		p.advised = append(p.advised, h)
	} else {
		p.used = append(p.used, h)
	}
	return h, nil
}

// anyGroup allows all groups, grown those that somebody makes grow, advised the others.
func anyGroup(*group) bool  { return true }
func grown(g *group) bool   { return !g.Advised }
func advised(g *group) bool { return g.Advised }

// choose finds the group that grows for a kind, of which count pods are left; nil: none can.
func (p *planner) choose(ctx context.Context, k *kind, count int, payers []*budget, allowed func(*group) bool) (*group, error) {
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
		if offered.takes == 0 {
			continue
		}
		if g.full() {
			if k.full == nil {
				k.full = map[*group]bool{}
			}
			k.full[g] = true
			continue
		}
		if b, _ := refused(payers, g); b != nil {
			continue
		}
		if best.group == nil || offered.compare(best) < 0 {
			best = offered
		}
	}
	return best.group, ctx.Err()
}

// ranked are the groups in the order in which they would grow for count pods, those last that
// do not fit or of which it is not known.
func (p *planner) ranked(ctx context.Context, k *kind, count int) ([]*group, error) {
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
	// takes is how many of the pods that wait it takes, rest what is free of it then.
	takes int
	rest  func() int
	// together tells that the pods have to be on one node.
	together bool
}

// offer is what a new node of the group takes of count pods.
func (p *planner) offer(ctx context.Context, g *group, k *kind, count int) (offer, error) {
	filling, err := p.filling(ctx, g.empty, k)
	if err != nil {
		return offer{}, err
	}
	takes := min(filling.pods(), count)
	rest := func() int { return p.rest(filling.machines[takes]) }
	return offer{group: g, takes: takes, rest: rest, together: len(k.named) > 0}, nil
}

// compare is negative where o is better than other: of a group that somebody makes grow, then
// cheaper for each pod, then with less left over, then for more pods at once, then the smaller
// machine.
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

// comparePrice compares what one pod costs an hour, exactly.
func (o offer) comparePrice(other offer) int {
	mine, theirs := o.group.PricePerHour, other.group.PricePerHour
	if mine == nil || theirs == nil {
		return falseFirst(mine == nil, theirs == nil)
	}
	high, low := bits.Mul64(nano(mine), uint64(other.takes))
	otherHigh, otherLow := bits.Mul64(nano(theirs), uint64(o.takes))
	return cmp.Or(cmp.Compare(high, otherHigh), cmp.Compare(low, otherLow))
}

// nano is a price in billionths; a negative one is nothing.
func nano(price *resource.Quantity) uint64 { return uint64(max(price.ScaledValue(resource.Nano), 0)) }
