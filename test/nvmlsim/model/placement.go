package model

import (
	"slices"

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

// weight is how many of the units have a compute slice of their own.
func weight(g catalog.Geometry, of units) int {
	unitsPerSlice := g.MemorySlices
	for _, p := range g.Profiles {
		unitsPerSlice = min(unitsPerSlice, p.Size)
	}
	n := 0
	for unit := range computeSlices(g) * unitsPerSlice {
		if of&unitsOf(unit, 1) != 0 {
			n++
		}
	}
	return n
}

// chosenStart is where the driver puts an instance that nobody placed: in the
// smallest free block that holds it, splitting off the lighter half of a block
// where it has to split one. So instances of one slice go to 6, 4, 5, 0, 1, 2, 3
// on a board with seven, as the MIG User Guide's listings have it, and the order
// of creation decides what fits. starts are the placements that are free.
func chosenStart(g catalog.Geometry, taken units, p catalog.Profile, starts []int) int {
	best, bestBlocks := starts[0], enclosingBlocks(g, taken, starts[0], p.Size)
	for _, start := range starts[1:] {
		if blocks := enclosingBlocks(g, taken, start, p.Size); slices.Compare(blocks, bestBlocks) < 0 {
			best, bestBlocks = start, blocks
		}
	}
	return best
}

// enclosingBlocks are the weights of the free blocks around a placement, from
// the largest in. A block is a placement doubled, and doubled again.
func enclosingBlocks(g catalog.Geometry, taken units, start, size int) []int {
	var blocks []int
	for ; size <= g.MemorySlices; size *= 2 {
		block := unitsOf(start/size*size, size)
		if taken&block != 0 {
			break
		}
		blocks = append(blocks, weight(g, block))
	}
	slices.Reverse(blocks)
	return blocks
}
