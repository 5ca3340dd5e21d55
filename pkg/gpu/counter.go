package gpu

import (
	"fmt"
	"slices"
)

// Counter is one thing that the shapes of a GPU compete for.
type Counter struct {
	// Name is that of the counter in NVIDIA's driver.
	Name string
	// Total is how much there is: bytes of memory, else pieces.
	Total uint64
	use   func(Profile, int) uint64
}

// Use is how much of the counter a partition takes.
func (c Counter) Use(p Partition) uint64 { return c.use(p.Profile, p.Start) }

// Counters are what keeps apart the shapes that the GPU offers: the fewest that
// admit exactly the sets of partitions that fit its Room together, and nothing
// beside a whole GPU. A counter that never decides only costs the scheduler
// time, in which it compares every counter of the node for each candidate.
// There are none where no two shapes can meet.
func (g GPU) Counters() []Counter {
	partitions := g.Partitions()
	if len(partitions) == 0 {
		return nil
	}
	return append(bindingSlices(partitions, g.OffersWhole()), bindingAmounts(partitions, g.Room())...)
}

// bindingSlices are the memory slices that it takes to keep apart every two
// shapes that overlap. The last ones are left out first: on boards with eight
// memory slices nothing ever has only the eighth.
func bindingSlices(partitions []Partition, whole bool) []Counter {
	var all uint64
	placed := make([]uint64, 0, len(partitions)+1)
	for _, p := range partitions {
		bits := sliceBits(p.Start, p.Profile.Size)
		placed = append(placed, bits)
		all |= bits
	}
	if whole {
		placed = append(placed, all)
	}
	kept := all
	for slice := maxSlices - 1; slice >= 0; slice-- {
		if bit := uint64(1) << slice; kept&bit != 0 && tellsApart(kept&^bit, placed) {
			kept &^= bit
		}
	}
	var counters []Counter
	for slice := range maxSlices {
		if bit := uint64(1) << slice; kept&bit != 0 {
			counters = append(counters, Counter{
				Name:  fmt.Sprintf("memory-slice-%d", slice),
				Total: 1,
				use:   func(p Profile, start int) uint64 { return sliceBits(start, p.Size) >> slice & 1 },
			})
		}
	}
	return counters
}

// tellsApart says whether every two placements that overlap do so in kept.
func tellsApart(kept uint64, placed []uint64) bool {
	for i, a := range placed {
		for _, b := range placed[i+1:] {
			if a&b != 0 && a&b&kept == 0 {
				return false
			}
		}
	}
	return true
}

// amounts are what partitions have pieces of, in the order in which the first
// is left out where one of several decides.
var amounts = []struct {
	name string
	of   func(memory uint64, e Engines) uint64
}{
	{"memory", func(memory uint64, _ Engines) uint64 { return memory }},
	{"multiprocessors", func(_ uint64, e Engines) uint64 { return uint64(e.Multiprocessors) }},
	{"copy-engines", func(_ uint64, e Engines) uint64 { return uint64(e.CopyEngines) }},
	{"encoders", func(_ uint64, e Engines) uint64 { return uint64(e.Encoders) }},
	{"jpeg-engines", func(_ uint64, e Engines) uint64 { return uint64(e.JPEGEngines) }},
	{"decoders", func(_ uint64, e Engines) uint64 { return uint64(e.Decoders) }},
	{"ofa-engines", func(_ uint64, e Engines) uint64 { return uint64(e.OFAEngines) }},
}

// bindingAmounts are the amounts that it takes to refuse every set of
// partitions that do not overlap but need more than the room has.
func bindingAmounts(partitions []Partition, room Room) []Counter {
	refused := refusals(partitions, room)
	kept := uint(1)<<len(amounts) - 1
	for i := range amounts {
		without := kept &^ (1 << i)
		if !slices.ContainsFunc(refused, func(by uint) bool { return by&without == 0 }) {
			kept = without
		}
	}
	var counters []Counter
	for i, amount := range amounts {
		if kept&(1<<i) != 0 {
			counters = append(counters, Counter{
				Name:  amount.name,
				Total: amount.of(room.memory, room.Engines),
				use:   func(p Profile, _ int) uint64 { return amount.of(p.MemoryBytes, p.Engines) },
			})
		}
	}
	return counters
}

// refusals are the sets of amounts, as bits, any of which refuses some set of
// partitions that do not overlap. Sets that contain a refused one are not
// looked at: what refuses the smaller set refuses them.
func refusals(partitions []Partition, room Room) []uint {
	totals := make([]uint64, len(amounts))
	for i, amount := range amounts {
		totals[i] = amount.of(room.memory, room.Engines)
	}
	var found []uint
	var visit func(from int, taken uint64, used []uint64)
	visit = func(from int, taken uint64, used []uint64) {
		for n := from; n < len(partitions); n++ {
			p := partitions[n].Profile
			bits := sliceBits(partitions[n].Start, p.Size)
			if taken&bits != 0 {
				continue
			}
			sum := make([]uint64, len(amounts))
			var by uint
			for i, amount := range amounts {
				if sum[i] = used[i] + amount.of(p.MemoryBytes, p.Engines); sum[i] > totals[i] {
					by |= 1 << i
				}
			}
			switch {
			case by == 0:
				visit(n+1, taken|bits, sum)
			case !slices.Contains(found, by):
				found = append(found, by)
			}
		}
	}
	visit(0, 0, make([]uint64, len(amounts)))
	return found
}
