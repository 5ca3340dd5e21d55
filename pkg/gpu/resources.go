package gpu

// maxSlices is how many memory slices fit the bits of Resources; boards have 4, 8 or 12.
const maxSlices = 64

// Resources are the parts of a GPU that partitions consume. The zero value is nothing.
type Resources struct {
	slices uint64 // one bit per memory slice
	memory uint64 // bytes
	Engines
}

// FreeResources are the GPU's resources without those of its Instances. The memory and the
// engines of a GPU are those of its largest profile.
func (g GPU) FreeResources() Resources {
	var free Resources
	for _, p := range g.Profiles {
		for _, start := range p.Starts {
			free.slices |= sliceBits(start, p.Size)
		}
		free.memory = max(free.memory, p.MemoryBytes)
		free.Engines = free.Engines.with(p.Engines, func(a, b int) int { return max(a, b) })
	}
	for _, i := range g.Instances {
		free.slices &^= sliceBits(i.Start, i.Size)
		if p, known := g.profile(i.ProfileID); known {
			free.memory -= min(free.memory, p.MemoryBytes)
			free.Engines = free.Engines.less(p.Engines)
		}
	}
	return free
}

// Fits reports whether a partition of the profile can be created at start.
func (r Resources) Fits(p Profile, start int) bool {
	bits := sliceBits(start, p.Size)
	return bits != 0 && r.slices&bits == bits && p.MemoryBytes <= r.memory && p.Engines.within(r.Engines)
}

// Take returns the resources without those of a partition, which must fit.
func (r Resources) Take(p Profile, start int) Resources {
	r.slices &^= sliceBits(start, p.Size)
	r.memory -= p.MemoryBytes
	r.Engines = r.Engines.less(p.Engines)
	return r
}

// sliceBits are the memory slices of a placement, none for one that no board has.
func sliceBits(start, size int) uint64 {
	if start < 0 || size < 1 || size > maxSlices || start+size > maxSlices {
		return 0
	}
	return (^uint64(0) >> (maxSlices - size)) << start
}

// less subtracts o, and never goes below 0.
func (e Engines) less(o Engines) Engines {
	return e.with(o, func(a, b int) int { return max(a-b, 0) })
}

func (e Engines) within(o Engines) bool { return e.less(o) == Engines{} }

func (e Engines) with(o Engines, combine func(a, b int) int) Engines {
	return Engines{
		Multiprocessors: combine(e.Multiprocessors, o.Multiprocessors),
		CopyEngines:     combine(e.CopyEngines, o.CopyEngines),
		Decoders:        combine(e.Decoders, o.Decoders),
		Encoders:        combine(e.Encoders, o.Encoders),
		JPEGEngines:     combine(e.JPEGEngines, o.JPEGEngines),
		OFAEngines:      combine(e.OFAEngines, o.OFAEngines),
	}
}
