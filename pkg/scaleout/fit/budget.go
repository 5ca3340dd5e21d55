package fit

import (
	"context"
	"errors"
	"math"
)

// searchSteps limits a search of the allocator, which tries all combinations of devices. A step is one device that it
// tries. The hardest search on a node of eight GPUs that finds an answer, with a request for each GPU, takes 220,000
// steps and about a second.
const searchSteps = 1 << 18

const (
	// explainSteps limits each search for an explanation. Each kind of pods and nodes takes several searches.
	explainSteps = 1 << 12
	// tolerated is the number of hard demands that also halve the budgets of the others.
	tolerated = 4
	// mostHalvings limits the halvings of a budget: to 1,024 steps, which suffice for nearly all searches.
	mostHalvings = 8
)

// budget limits the cost of searches. A search without an end on one machine has none on the next either, and there are
// many machines. Without ever smaller budgets, a single pod would stop the plan. A budget counts work and not time, so
// that the same cluster gives the same plan on any computer and under any load.
type budget struct {
	// search is the budget of the first search for a demand, in steps.
	search int
	// endless counts the searches for a demand that exceeded their budgets.
	endless map[*demand]int
	// spent is the work so far: the steps of all searches, the devices that each has looked at, and a step for each pod
	// that was tried on a machine. allowed is its limit.
	spent, allowed int
}

// of is the budget of a search, in steps.
func (b *budget) of(d *demand) int {
	halvings := b.endless[d] + len(b.endless)/tolerated
	return b.search >> min(halvings, mostHalvings)
}

// Allow limits placements to a number of steps, of about five microseconds each, until the returned function is called.
// Cached answers cost nothing.
func (c *Cluster) Allow(steps int) func() {
	c.budget.allowed = c.budget.spent + steps
	return func() { c.budget.allowed = math.MaxInt }
}

// ErrSpent is returned for placements beyond the budget.
var ErrSpent = errors.New("the search has taken too many steps")

// metered is the context of a search. The allocator calls Err for each device that it tries: each call is a step.
type metered struct {
	context.Context
	steps, most int
}

// Err returns an error once the budget is spent, or the context has ended.
func (m *metered) Err() error {
	if m.steps++; m.steps > m.most {
		return ErrSpent
	}
	return m.Context.Err()
}
