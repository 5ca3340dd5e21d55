package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// group is a node group, with what the plan has made of it.
type group struct {
	*Group
	// index is its place in the snapshot.
	index int
	// empty is a new node; nil where it is not known what one has.
	empty *fit.Machine
	// opened counts the nodes that the plan asks for.
	opened int
}

func (p *planner) readGroups(all []Group) []*group {
	var groups []*group
	for i := range all {
		g := &group{Group: &all[i], index: i}
		if t := g.Template; t != nil {
			g.empty = p.cluster.Machine(fit.Node{Object: t.Node, Slices: t.Slices, Pods: g.Pods})
		}
		groups = append(groups, g)
	}
	slices.SortFunc(groups, func(a, b *group) int { return cmp.Compare(a.Name, b.Name) })
	return groups
}

// barred says why the group may not grow, whatever the pod, or nothing.
func (g *group) barred() string {
	switch {
	case g.empty == nil && g.Unknown == "":
		return "it is not known what a new node has"
	case g.empty == nil:
		return g.Unknown
	case g.Closed != "":
		return g.Closed
	case g.Max != nil && g.Size >= *g.Max:
		return "at its maximum of " + nodes(*g.Max)
	}
	return ""
}

// full tells whether there are as many nodes as there may be, with those that the plan asks for.
func (g *group) full() bool { return g.Max != nil && g.Size+g.opened >= *g.Max }

func nodes(n int) string {
	if n == 1 {
		return "1 node"
	}
	return fmt.Sprintf("%d nodes", n)
}

// emptied identifies a filling.
type emptied struct {
	machine *fit.Machine
	kind    *kind
}

// filling is what becomes of a machine as pods of one kind are put on it.
type filling struct {
	// machines has, at n, what is left of it with n pods.
	machines []*fit.Machine
	// miss is why not even one pod fits, nil where one does; end is why no further one does,
	// nil where counting has ended before.
	miss, end *fit.Miss
}

// mostPerNode bounds a filling: kubelet takes fewer pods, but a template may not know.
const mostPerNode = 1024

func (f *filling) pods() int { return len(f.machines) - 1 }

// filling fills a machine with pods of a kind. What is known is right as long as the first
// pod fares as before: devices that nodes share may be gone since.
func (p *planner) filling(ctx context.Context, m *fit.Machine, k *kind) (*filling, error) {
	left, miss, err := p.cluster.Place(ctx, m, k.example)
	if err != nil {
		return nil, err
	}
	key := emptied{machine: m, kind: k}
	if miss != nil {
		return &filling{machines: []*fit.Machine{m}, miss: miss, end: miss}, nil
	}
	if known := p.fillings[key]; known != nil && known.machines[1] == left {
		return known, nil
	}
	f := &filling{machines: []*fit.Machine{m, left}}
	p.fillings[key] = f
	next, err := p.follower(k)
	if err != nil {
		return f, nil // the pod cannot be read with its claims placed, but one fits
	}
	for f.pods() < mostPerNode {
		if left, f.end, err = p.cluster.Place(ctx, left, next); err != nil || f.end != nil {
			break
		}
		f.machines = append(f.machines, left)
	}
	return f, err
}

// groupFit is what a kind finds in a group.
func (p *planner) groupFit(ctx context.Context, g *group, k *kind) (GroupFit, error) {
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
		found.Blocked = fmt.Sprintf("at its maximum of %s, %d of which this plan asks for", nodes(*g.Max), g.opened)
	}
	return found, nil
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

// anyGroup allows all groups, grown those that somebody makes grow, advised the others.
func anyGroup(*group) bool  { return true }
func grown(g *group) bool   { return !g.Advised }
func advised(g *group) bool { return g.Advised }

// choose finds the group that grows for a kind, of which count pods are left; nil: none can.
func (p *planner) choose(ctx context.Context, k *kind, count int, allowed func(*group) bool) (*group, error) {
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
		if best.group == nil || offered.compare(best) < 0 {
			best = offered
		}
	}
	return best.group, ctx.Err()
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
