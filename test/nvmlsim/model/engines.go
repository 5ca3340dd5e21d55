package model

import "github.com/mica-gpu/mica/pkg/catalog"

// engines is what an instance owns of a GPU besides its memory units: MiB of memory, multiprocessors,
// and engines of each kind. Creating an instance fails when any of it is used up, even if its units are free.
type engines [7]uint64

func enginesOf(p catalog.Profile) engines {
	return engines{
		p.MemoryMiB, uint64(p.Multiprocessors), uint64(p.CopyEngines), uint64(p.Decoders), uint64(p.Encoders),
		uint64(p.JPEGEngines), uint64(p.OFAEngines),
	}
}

func (e engines) plus(other engines) engines {
	for i := range e {
		e[i] += other[i]
	}
	return e
}

func (e engines) within(limit engines) bool {
	for i := range e {
		if e[i] > limit[i] {
			return false
		}
	}
	return true
}

// allEngines is what the instances of a GPU share: of each kind, as many as the profile with most of it owns.
func allEngines(g catalog.Geometry) engines {
	var all engines
	for _, p := range g.Profiles {
		for i, count := range enginesOf(p) {
			all[i] = max(all[i], count)
		}
	}
	return all
}
