package gpu

import (
	"fmt"
	"slices"
)

// memoryCounter counts the memory that quotas charge, in bytes.
const memoryCounter = "memory"

// partitionMemory counts the memory that decides which partitions fit. The whole GPU consumes
// none of it, so quotas cannot charge it.
const partitionMemory = "partition-memory"

// Counter is a resource for which the shapes of a GPU compete.
type Counter struct {
	// Name is the name in NVIDIA's driver.
	Name string
	// Total is the amount: bytes of memory, memory slices in sliceUnits, or pieces.
	Total uint64
	// whole is the whole GPU's consumption, and shared that of the GPU in shares.
	whole, shared uint64
	// use is the consumption of a partition of a profile at a start.
	use func(Profile, int) uint64
	// charged: quotas read the counter, and it never decides.
	charged bool
	// ofInstances: the counter keeps the claims of an administrator's instance at start apart.
	ofInstances bool
	start       int
}

// Bytes reports whether the counter counts bytes, not pieces.
func (c Counter) Bytes() bool { return c.Name == memoryCounter || c.Name == partitionMemory }

// sliceUnits is the number of units of a memory slice. A partition takes all of them, as a
// GPU in shares does, and the whole GPU one, which keeps them apart. The others are for
// claims with admin access, which look at a GPU of another claim: the scheduler needs free
// counters for them, too (kubernetes/kubernetes#140729).
const sliceUnits = 32

// Counters keep apart the shapes that are offered of one GPU. They are the fewest that admit
// exactly the sets of partitions that fit its FreeResources together, and nothing beside a
// whole GPU: the scheduler compares every counter of a node for each candidate. One counter
// stands for a GPU that is not partitioned. There are none if no two shapes can meet. Beside
// counters that decide, there is one for quotas, which does not.
func Counters(offered []Shape) []Counter {
	counters := deciding(offered)
	if memory := charged(offered); len(counters) > 0 && memory.Total > 0 {
		counters = append(counters, memory)
	}
	return counters
}

// charged is the memory that a device for one claim has, in bytes, under its name in NVIDIA's
// driver. Kueue charges a claim the most that any device takes which the claim could get (its
// counter sources), and looks at no total. The total is sliceUnits of the largest device: no
// GPU is given away more often at once, so this counter refuses nothing that the others admit.
func charged(offered []Shape) Counter {
	memory := Counter{Name: memoryCounter, charged: true}
	for _, shape := range offered {
		memory.Total = max(memory.Total, sliceUnits*chargeOf(shape))
	}
	return memory
}

// chargeOf is nothing for shares, because each of their claims would be charged for all of
// the device, and for an administrator's partition, because claims with admin access look at
// it without limit.
func chargeOf(s Shape) uint64 {
	if s.Form().Shared() || isStatic(s) {
		return 0
	}
	return s.MemoryBytes()
}

// isStatic reports whether a shape is a partition that exists without a claim.
func isStatic(s Shape) bool { return !s.Form().Entire() && s.UUID() != "" }

// UsedBy is how much of the counter a shape consumes.
func (c Counter) UsedBy(s Shape) uint64 {
	if c.charged {
		return chargeOf(s)
	}
	return s.Uses(c)
}

func deciding(offered []Shape) []Counter {
	var placements []Partition
	var statics []int
	entire := 0 // shapes of the entire GPU
	for _, shape := range offered {
		form := shape.Form()
		switch {
		case form.Entire():
			entire++
		case isStatic(shape):
			statics = append(statics, form.Start)
		default:
			profile, _ := shape.Physical().profile(form.ProfileID)
			placements = append(placements, Partition{GPU: shape.Physical(), Profile: profile, Start: form.Start})
		}
	}
	counters := instances(statics)
	switch {
	case len(placements) > 0:
		counters = append(counters, bindingSlices(placements, entire)...)
		counters = append(counters, bindingAmounts(distinct(placements), placements[0].GPU.FreeResources())...)
	case entire > 1:
		counters = append(counters, Counter{Name: "gpu", Total: sliceUnits, whole: 1, shared: sliceUnits})
	}
	return counters
}

// instances keep apart the claims of an administrator's instance that is offered in more than
// one way: as before a change of policy, for the claims that have it, and as now.
func instances(starts []int) []Counter {
	slices.Sort(starts)
	var counters []Counter
	for i, start := range starts {
		if i > 0 && starts[i-1] == start && (len(counters) == 0 || counters[len(counters)-1].start != start) {
			counters = append(counters, Counter{
				Name: fmt.Sprintf("partition-%d", start), Total: 1,
				ofInstances: true, start: start,
				use: func(Profile, int) uint64 { return 0 },
			})
		}
	}
	return counters
}

// distinct drops repeated partitions, which are offered in several ways.
func distinct(partitions []Partition) []Partition {
	var once []Partition
	for _, p := range partitions {
		if !slices.ContainsFunc(once, func(o Partition) bool { return o.Profile.ID == p.Profile.ID && o.Start == p.Start }) {
			once = append(once, p)
		}
	}
	return once
}

// bindingSlices are the fewest memory slices that keep apart every two shapes that overlap;
// shapes of the entire GPU overlap all. The last slices are left out first: on boards with
// eight memory slices nothing ever has only the eighth.
func bindingSlices(partitions []Partition, entire int) []Counter {
	var all uint64
	placed := make([]uint64, 0, len(partitions)+entire)
	for _, p := range partitions {
		bits := sliceBits(p.Start, p.Profile.Size)
		placed = append(placed, bits)
		all |= bits
	}
	for range entire {
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
				Total: sliceUnits,
				whole: 1, shared: sliceUnits,
				use: func(p Profile, start int) uint64 { return sliceUnits * (sliceBits(start, p.Size) >> slice & 1) },
			})
		}
	}
	return counters
}

// tellsApart reports whether every two placements that overlap do so in kept.
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

// amounts are the resources that partitions have amounts of. If one of several is enough to
// decide, the first is left out first.
var amounts = [len(amountValues{})]struct {
	name string
	of   func(memory uint64, e Engines) uint64
}{
	{partitionMemory, func(memory uint64, _ Engines) uint64 { return memory }},
	{"multiprocessors", func(_ uint64, e Engines) uint64 { return uint64(e.Multiprocessors) }},
	{"copy-engines", func(_ uint64, e Engines) uint64 { return uint64(e.CopyEngines) }},
	{"encoders", func(_ uint64, e Engines) uint64 { return uint64(e.Encoders) }},
	{"jpeg-engines", func(_ uint64, e Engines) uint64 { return uint64(e.JPEGEngines) }},
	{"decoders", func(_ uint64, e Engines) uint64 { return uint64(e.Decoders) }},
	{"ofa-engines", func(_ uint64, e Engines) uint64 { return uint64(e.OFAEngines) }},
}

// bindingAmounts are the fewest amounts that refuse every set of partitions that do not
// overlap but need more than there is.
func bindingAmounts(partitions []Partition, free Resources) []Counter {
	refused := refusals(partitions, free)
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
				Total: amount.of(free.memory, free.Engines),
				use:   func(p Profile, _ int) uint64 { return amount.of(p.MemoryBytes, p.Engines) },
			})
		}
	}
	return counters
}

// refusals are the sets of amounts, as bits. Each amount of a set refuses some set of
// partitions that do not overlap. Supersets of a refused set need no look: the same amounts
// refuse them.
func refusals(partitions []Partition, free Resources) []uint {
	totals := amountsOf(free.memory, free.Engines)
	taken := make([]uint64, len(partitions))
	used := make([]amountValues, len(partitions))
	for n, p := range partitions {
		taken[n] = sliceBits(p.Start, p.Profile.Size)
		used[n] = amountsOf(p.Profile.MemoryBytes, p.Profile.Engines)
	}
	var found []uint
	var extend func(from int, bits uint64, sum amountValues)
	extend = func(from int, bits uint64, sum amountValues) {
		for n := from; n < len(partitions); n++ {
			if bits&taken[n] != 0 {
				continue
			}
			more := sum
			var by uint
			for i := range more {
				if more[i] += used[n][i]; more[i] > totals[i] {
					by |= 1 << i
				}
			}
			switch {
			case by == 0:
				extend(n+1, bits|taken[n], more)
			case !slices.Contains(found, by):
				found = append(found, by)
			}
		}
	}
	extend(0, 0, amountValues{})
	return found
}

// amountValues are values in the order of amounts.
type amountValues [7]uint64

func amountsOf(memory uint64, e Engines) (values amountValues) {
	for i, amount := range amounts {
		values[i] = amount.of(memory, e)
	}
	return values
}
