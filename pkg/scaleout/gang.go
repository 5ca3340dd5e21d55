package scaleout

import (
	"cmp"
	"context"
	"fmt"
	"slices"
)

// mostGangs is where the counting of gangs ends whose pods are not alike: each is placed pod by pod.
const mostGangs = 128

// part is a number of a gang's pods that are alike.
type part struct {
	kind  *kind
	count int
}

// readGang tells the pods of a gang apart.
func (p *planner) readGang(members []Member) []part {
	var gang []part
	for _, member := range members {
		k := p.sampleOf(member.Pod)
		if i := slices.IndexFunc(gang, func(known part) bool { return known.kind.id == k.id }); i >= 0 {
			gang[i].count += member.Count
		} else {
			gang = append(gang, part{k, member.Count})
		}
	}
	return gang
}

// hardest is the kind that stands for the gang: one that cannot be planned, or else the largest.
func hardest(gang []part) *kind {
	return slices.MaxFunc(gang, func(a, b part) int {
		return cmp.Or(falseFirst(a.kind.example == nil, b.kind.example == nil), a.kind.size.compare(b.kind.size))
	}).kind
}

// runAll counts replicas, of however many pods each is.
func (c *count) runAll(ctx context.Context) error {
	switch len(c.gang) {
	case 0:
		return c.run(ctx)
	case 1:
		err := c.run(ctx)
		c.supply = c.supply.of(c.gang[0].count)
		return err
	}
	for _, member := range c.gang {
		member.kind.aborts = ""
		if len(member.kind.named) > 0 {
			return fmt.Errorf("the pods of a replica are not alike and share claim %s by its name: name a ResourceClaimTemplate in its place", member.kind.named[0].name)
		}
	}
	return c.gangs(ctx)
}

// of makes replicas of so many pods each, of room for pods. Those on nodes that are there come first.
func (r Supply) of(pods int) Supply {
	free, here, all := r.Free/pods, (r.Free+r.Coming)/pods, r.Total()/pods
	r.Free, r.Coming, r.Provisionable = free, here-free, all-here
	return r
}

// gangs counts gangs of several kinds of pods by putting them on hosts as the plan would, and takes
// them back.
func (c *count) gangs(ctx context.Context) error {
	before := c.checkpoint()
	defer c.restore(before)
	for c.supply.Total() < mostGangs {
		number, err := c.putGang(ctx, before)
		if number == nil || err != nil {
			return err
		}
		*number++
	}
	c.because = fmt.Sprintf("room is counted up to %d replicas of several pods", mostGangs)
	return nil
}

// putGang puts a gang on hosts, and gives the part of the room that the furthest of them is; nil
// where there is no room for all of its pods.
func (c *count) putGang(ctx context.Context, before checkpoint) (furthest *int, err error) {
	numbers := []*int{&c.supply.Free, &c.supply.Coming, &c.supply.Provisionable}
	last := 0
	for _, member := range c.gang {
		search, err := c.search(ctx, member.kind, member.count)
		if err != nil {
			return nil, err
		}
		search.usable, search.payers = c.usable, c.payers(c.namespace)
		for i := range member.count {
			h, left, err := search.next(ctx, member.count-i)
			if err != nil {
				return nil, err
			}
			if h == nil || h.outcome() == Advised {
				c.kind = member.kind
				_, c.because, err = c.overBudget(ctx, member.kind, member.count-i, search.payers)
				return nil, err
			}
			c.cluster.Commit(left)
			h.machine = left
			c.charge(h, search.payers)
			last = max(last, slices.Index(numbers, c.numberFor(h, before)))
		}
	}
	return numbers[last], nil
}
