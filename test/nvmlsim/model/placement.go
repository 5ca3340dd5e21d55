package model

import (
	"github.com/mica-gpu/mica/pkg/catalog"
)

// units is a set of memory units of a GPU.
type units uint

func unitsOf(start, size int) units { return (1<<size - 1) << start }

// computeSlices is how many compute slices a GPU has: as many as its largest
// profile. The last memory units of a board may belong to no slice of their own.
func computeSlices(g catalog.Geometry) int {
	most := 0
	for _, p := range g.Profiles {
		most = max(most, p.Slices)
	}
	return most
}
