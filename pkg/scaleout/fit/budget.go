package fit

import (
	"context"
	"errors"
	"math"
)

// searchSteps ends a search of the allocator, which tries all combinations of devices. A step is a device that it
// tries. The hardest search that ends on a node of eight GPUs, for each by a request of its own, takes 220,000 steps
// and about a second.
const searchSteps = 1 << 18

const (
	// explainSteps bounds each search for an explanation. Each kind of pods and nodes takes several.
	explainSteps = 1 << 12
	// tolerated is how many hard demands halve the budget of the others, too.
	tolerated = 4
	// mostHalvings bounds by how often a budget is halved: to 1,024 steps, which nearly all searches
	// keep.
	mostHalvings = 8
)

// budget is how much searches may cost. One that has no end on a machine has none on the next
// either, and there are many machines: without a smaller budget for each, one pod would keep the
// plan from all others. It counts work and not time, so that the same cluster gives the same plan
// on every machine and under any load.
type budget struct {
	// search is in steps.
	search int
	// endless counts the searches for a demand that did not end within it.
	endless map[*demand]int
	// spent is the work so far: the steps of all searches, the devices that each has looked at, and
	// a step for each pod that was tried on a machine. allowed is how much it may be.
	spent, allowed int
}

// of is the budget of a search, in steps.
func (b *budget) of(d *demand) int {
	halvings := b.endless[d] + len(b.endless)/tolerated
	return b.search >> min(halvings, mostHalvings)
}

// Allow gives placements a budget of steps, about five microseconds each, until the function that it gives is
// called. What is known already costs nothing.
func (c *Cluster) Allow(steps int) func() {
	c.budget.allowed = c.budget.spent + steps
	return func() { c.budget.allowed = math.MaxInt }
}

// ErrSpent is of placements beyond the budget.
var ErrSpent = errors.New("the search has taken too many steps")

// metered is the context of a search. The allocator asks it for each device that it tries whether
// to go on, and by that spends it.
type metered struct {
	context.Context
	steps, most int
}

// Err is not nil once the budget is spent, or the context has ended.
func (m *metered) Err() error {
	if m.steps++; m.steps > m.most {
		return ErrSpent
	}
	return m.Context.Err()
}
