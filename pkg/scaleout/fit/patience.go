package fit

import "time"

// searchLimit ends a search of the allocator: it tries all combinations, of which there can be
// more than anybody waits for. It is shorter than the scheduler's, which is per node.
const searchLimit = 2 * time.Second

const (
	// tolerated is how many hard demands halve the time of the others, too.
	tolerated = 4
	// mostHalvings bounds by how often a limit is halved: to 8 ms, which nearly all searches keep.
	mostHalvings = 8
)

// patience is how long searches may take. One that has no end on a machine has none on the next
// either, and there are many machines: without less time for each, one pod would keep the plan
// from all others.
type patience struct {
	longest time.Duration
	// endless counts the searches for a demand that did not end in time.
	endless map[*demand]int
}

// limit is the time for a search.
func (p *patience) limit(d *demand) time.Duration {
	halvings := p.endless[d] + len(p.endless)/tolerated
	return p.longest >> min(halvings, mostHalvings)
}

// lose notes that a search did not end in time.
func (p *patience) lose(d *demand) { p.endless[d]++ }
