package model

import "github.com/mica-gpu/mica/pkg/catalog"

// engines is what an instance owns of a GPU besides its memory units. Creating
// one fails when any of it is used up, even where its units are free.
type engines struct {
	memoryMiB                                        uint64
	multiprocessors, copies, decoders, encoders, ofa int
	jpeg                                             int
}

func enginesOf(p catalog.Profile) engines {
	return engines{
		memoryMiB:       p.MemoryMiB,
		multiprocessors: p.Multiprocessors,
		copies:          p.CopyEngines,
		decoders:        p.Decoders,
		encoders:        p.Encoders,
		jpeg:            p.JPEGEngines,
		ofa:             p.OFAEngines,
	}
}

func (e engines) plus(other engines) engines {
	return engines{
		memoryMiB:       e.memoryMiB + other.memoryMiB,
		multiprocessors: e.multiprocessors + other.multiprocessors,
		copies:          e.copies + other.copies,
		decoders:        e.decoders + other.decoders,
		encoders:        e.encoders + other.encoders,
		jpeg:            e.jpeg + other.jpeg,
		ofa:             e.ofa + other.ofa,
	}
}

func (e engines) within(limit engines) bool {
	return e.memoryMiB <= limit.memoryMiB && e.multiprocessors <= limit.multiprocessors &&
		e.copies <= limit.copies && e.decoders <= limit.decoders && e.encoders <= limit.encoders &&
		e.jpeg <= limit.jpeg && e.ofa <= limit.ofa
}

// allEngines is what instances can share: of everything what the profile with
// the most of it owns.
func allEngines(g catalog.Geometry) engines {
	var all engines
	for _, p := range g.Profiles {
		one := enginesOf(p)
		all = engines{
			memoryMiB:       max(all.memoryMiB, one.memoryMiB),
			multiprocessors: max(all.multiprocessors, one.multiprocessors),
			copies:          max(all.copies, one.copies),
			decoders:        max(all.decoders, one.decoders),
			encoders:        max(all.encoders, one.encoders),
			jpeg:            max(all.jpeg, one.jpeg),
			ofa:             max(all.ofa, one.ofa),
		}
	}
	return all
}
