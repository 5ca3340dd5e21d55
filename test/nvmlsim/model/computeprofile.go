package model

import (
	"fmt"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// computeProfile is one way to cut compute instances from a GPU instance. Its
// ID is its NVML_COMPUTE_INSTANCE_PROFILE_* constant. Compute instances share
// the engines and the memory of their GPU instance.
type computeProfile struct {
	id              int
	slices          int
	starts          []int
	multiprocessors int
}

// computeProfileIDs are the constants by number of slices. Those of 8 and 6
// slices, and the variants of 1 and 7, are on no board of the catalogue.
var computeProfileIDs = map[int]int{1: 0, 2: 1, 3: 2, 4: 3, 7: 4}

// computeProfiles are the ways to divide an instance of a profile: whole, or in
// parts that at most leave a rest of one slice. Parts lie where a whole power of
// two of slices begins: in three slices one part of two fits, not two.
func computeProfiles(g catalog.Geometry, p catalog.Profile) []computeProfile {
	var all []computeProfile
	for _, size := range []int{1, 2, 3, 4, 7} {
		if size != p.Slices && 2*size > p.Slices+1 {
			continue
		}
		step := 1
		for step < size {
			step *= 2
		}
		profile := computeProfile{id: computeProfileIDs[size], slices: size, multiprocessors: p.Multiprocessors}
		if size < p.Slices {
			profile.multiprocessors = size * sliceMultiprocessors(g)
		}
		for start := 0; start+size <= p.Slices; start += step {
			profile.starts = append(profile.starts, start)
		}
		all = append(all, profile)
	}
	return all
}

// sliceMultiprocessors is what one slice has where an instance is divided: what
// the smallest profile has. The rest is unused.
func sliceMultiprocessors(g catalog.Geometry) int {
	least := g.Profiles[0].Multiprocessors
	for _, p := range g.Profiles {
		least = min(least, p.Multiprocessors)
	}
	return least
}

func (i *gpuInstance) computeProfile(id int) (computeProfile, bool) {
	for _, p := range computeProfiles(*i.gpu.board.MIG, i.profile) {
		if p.id == id {
			return p, true
		}
	}
	return computeProfile{}, false
}

// wholeComputeProfile is the one that takes all of a GPU instance.
func (i *gpuInstance) wholeComputeProfile() computeProfile {
	all := computeProfiles(*i.gpu.board.MIG, i.profile)
	return all[len(all)-1]
}

func (p computeProfile) nameIn(g catalog.Profile) string {
	if p.slices == g.Slices {
		return g.Name
	}
	return fmt.Sprintf("%dc.%s", p.slices, g.Name)
}
