package gpu

import "slices"

// Profile is a size of MIG partition that a board offers.
type Profile struct {
	// ID is the profile ID that NVML's placement and creation calls take. It
	// means different profiles on different boards.
	ID int
	// Name is how nvidia-smi writes the profile, such as "1g.10gb+me".
	Name string
	// Slices is the number of compute slices.
	Slices int
	// Starts are the first memory slices of the legal placements, ascending,
	// and Size is how many memory slices each covers.
	Starts []int
	Size   int
	// MemoryBytes is the driver's figure. It differs slightly between drivers, so
	// it identifies nothing.
	MemoryBytes uint64
	Engines
}

// Engines are a partition's resources beside memory.
type Engines struct {
	Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines, OFAEngines int
}

// Instance is a GPU instance that exists, with its compute instances.
type Instance struct {
	// ID is NVML's GPU instance ID. IDs are reused.
	ID int
	// ProfileID is the ID of its Profile.
	ProfileID int
	// Start and Size are its memory slices.
	Start, Size int
	// Devices are its MIG devices, one per compute instance.
	Devices []MIGDevice
}

// MIGDevice is the part of an Instance that a container uses.
type MIGDevice struct {
	// ComputeID is NVML's compute instance ID, unique within the Instance.
	ComputeID int
	// UUID is NVML's "MIG-..." identifier. The driver derives it from the place on the GPU, so a
	// device that replaces another in its place has the same UUID.
	UUID string
	// Slices is the number of compute slices, at most the Instance's.
	Slices int
}

// Without returns the GPU without Mica's own instances. Claims hold those, so they do not limit
// the offer.
func (g GPU) Without(own func(Instance) bool) GPU {
	g.Instances = slices.DeleteFunc(slices.Clone(g.Instances), own)
	return g
}

// profile finds a profile of the board by its ID.
func (g GPU) profile(id int) (Profile, bool) {
	i := slices.IndexFunc(g.Profiles, func(p Profile) bool { return p.ID == id })
	if i < 0 {
		return Profile{}, false
	}
	return g.Profiles[i], true
}

func (p Profile) describe(d Description) {
	d.Bytes(CapacityMemory, p.MemoryBytes)
	p.Engines.describe(d)
}
