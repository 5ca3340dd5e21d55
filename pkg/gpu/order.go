package gpu

import (
	"cmp"
	"math/bits"
	"slices"
)

// sortForPublication orders the partitions of one GPU as they are published. The
// scheduler takes the first that satisfies a claim: small profiles come before
// large ones, and those with fewer engines first, so that a claim which names
// no profile takes no more than it needs. Profiles with the optical flow
// accelerator, the only one of the board, come after all others. Within a profile,
// the placement comes first that blocks the fewest others; a test of pkg/slice
// compares that with other orders.
func sortForPublication(partitions []Partition) {
	blocked := make(map[int]int, len(partitions)) // by start and profile ID
	key := func(p Partition) int { return p.Profile.ID*maxSlices + p.Start }
	for _, p := range partitions {
		blocked[key(p)] = blocks(p, partitions)
	}
	slices.SortStableFunc(partitions, func(a, b Partition) int {
		return cmp.Or(
			compareProfiles(a.Profile, b.Profile),
			cmp.Compare(blocked[key(a)], blocked[key(b)]),
			cmp.Compare(b.Start, a.Start),
		)
	})
}

// sortStatics orders an administrator's partitions, of all GPUs, by their profiles as those of
// one GPU that are made for claims. The input has them by GPU.
func sortStatics(statics []Shape) {
	profileOf := func(s Shape) Profile {
		profile, _ := s.Physical().profile(s.Form().ProfileID)
		return profile
	}
	slices.SortStableFunc(statics, func(a, b Shape) int { return compareProfiles(profileOf(a), profileOf(b)) })
}

func compareProfiles(a, b Profile) int {
	return cmp.Or(
		cmp.Compare(a.OFAEngines, b.OFAEngines),
		cmp.Compare(a.Slices, b.Slices),
		cmp.Compare(a.MemoryBytes, b.MemoryBytes),
		cmp.Compare(a.Engines.sum(), b.Engines.sum()),
		cmp.Compare(a.ID, b.ID),
	)
}

// blocks sums up the memory slices of the partitions that overlap one.
func blocks(p Partition, among []Partition) int {
	own := sliceBits(p.Start, p.Profile.Size)
	weight := 0
	for _, other := range among {
		if theirs := sliceBits(other.Start, other.Profile.Size); own&theirs != 0 {
			weight += bits.OnesCount64(theirs)
		}
	}
	return weight
}

func (e Engines) sum() int {
	return e.Multiprocessors + e.CopyEngines + e.Decoders + e.Encoders + e.JPEGEngines + e.OFAEngines
}
