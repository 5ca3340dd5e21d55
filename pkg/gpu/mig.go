package gpu

import (
	"fmt"
	"slices"
	"strings"
)

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
	// MemoryBytes is what the driver lists with the profile. It differs a
	// little between drivers and is no identity.
	MemoryBytes uint64
	Engines
}

// Engines are what a partition owns beside memory.
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
	// Devices are the MIG devices in it, one a compute instance.
	Devices []MIGDevice
}

// MIGDevice is what a container uses of an Instance.
type MIGDevice struct {
	// ComputeID is NVML's compute instance ID, unique within the Instance.
	ComputeID int
	// UUID is NVML's "MIG-..." identifier. It changes with every creation.
	UUID string
	// Slices is the number of compute slices, at most the Instance's.
	Slices int
}

// Without is the GPU less the instances that own tells to be ours: those are
// no obstacle to what is offered, because claims hold them.
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

// Partition is the shape of a MIG partition that is made when a claim gets it.
type Partition struct {
	GPU     GPU
	Profile Profile
	// Start is the first memory slice.
	Start int
}

// Name is gpu-<minor>-mig-<profile>-<profile ID>-<start>, as in NVIDIA's
// driver. Only the ID tells 1g.24gb+me from 1g.24gb-me.
func (p Partition) Name() string {
	profile := strings.NewReplacer(".", "", "+", "-").Replace(strings.ToLower(p.Profile.Name))
	return fmt.Sprintf("gpu-%d-mig-%s-%d-%d", p.GPU.Minor, profile, p.Profile.ID, p.Start)
}

// Type is "mig".
func (p Partition) Type() string { return "mig" }

// Physical is the GPU that the partition is cut from.
func (p Partition) Physical() GPU { return p.GPU }

// Form is that of the place in which the partition is made.
func (p Partition) Form() Form {
	return Form{Base: BasePartition, Placement: Placement{ProfileID: p.Profile.ID, Profile: p.Profile.Name, Start: p.Start, Size: p.Profile.Size}}
}

// UUID is empty: the partition has none until it is made.
func (p Partition) UUID() string { return "" }

// MemoryBytes is the profile's.
func (p Partition) MemoryBytes() uint64 { return p.Profile.MemoryBytes }

// Uses is the partition's part.
func (p Partition) Uses(c Counter) uint64 { return c.use(p.Profile, p.Start) }

// Describe tells what the profile has.
func (p Partition) Describe(d Description) {
	p.identify(d)
	p.Profile.describe(d)
}

func (p Partition) identify(d Description) {
	d.Text(AttributeParentUUID, p.GPU.UUID)
	d.Text(AttributeProfile, p.Profile.Name)
}

func (p Partition) sharedType(s Sharing) string { return p.Type() + "-" + s.Name() }

func (p Partition) sharedUses(c Counter) uint64 { return p.Uses(c) }

func (p Profile) describe(d Description) {
	d.Bytes(CapacityMemory, p.MemoryBytes)
	p.Engines.describe(d)
}

// Static is the shape of a MIG partition that somebody else has made. It is
// handed to claims as it is, and never destroyed.
type Static struct {
	GPU      GPU
	Profile  Profile
	Instance Instance
	Device   MIGDevice
}

// Name is that of a Partition at the same place.
func (s Static) Name() string {
	return Partition{GPU: s.GPU, Profile: s.Profile, Start: s.Instance.Start}.Name()
}

// Type is "mig".
func (s Static) Type() string { return "mig" }

// Physical is the GPU that the partition is cut from.
func (s Static) Physical() GPU { return s.GPU }

// Form is that of the instance.
func (s Static) Form() Form {
	return Form{Base: BaseStatic, Placement: Placement{
		ProfileID: s.Profile.ID, Profile: s.Profile.Name, Start: s.Instance.Start, Size: s.Instance.Size,
		InstanceID: s.Instance.ID, ComputeID: s.Device.ComputeID,
	}}
}

// UUID is the MIG device's.
func (s Static) UUID() string { return s.Device.UUID }

// MemoryBytes is the profile's.
func (s Static) MemoryBytes() uint64 { return s.Profile.MemoryBytes }

// Describe tells what the profile has, and which memory slices it is.
func (s Static) Describe(d Description) {
	s.identify(d)
	s.Profile.describe(d)
	for i := range s.Instance.Size {
		d.Pieces(fmt.Sprint(capacityMemorySlice, s.Instance.Start+i), 1)
	}
}

func (s Static) identify(d Description) {
	d.Text(AttributeParentUUID, s.GPU.UUID)
	d.Text(AttributeProfile, s.Profile.Name)
	d.Text(AttributeUUID, s.Device.UUID)
}

func (s Static) sharedType(sharing Sharing) string { return s.Type() + "-" + sharing.Name() }

func (s Static) sharedUses(c Counter) uint64 { return s.Uses(c) }

// Uses is nothing but what tells its claims apart: what the instance has is no
// part of the FreeResources.
func (s Static) Uses(c Counter) uint64 {
	if c.ofInstances && c.start == s.Instance.Start {
		return c.Total
	}
	return 0
}

// Statics are the instances that can be handed out: those of a known profile
// with exactly one compute instance, which fills them. The others are in
// obstacles: they only keep their part of the GPU from being offered.
func (g GPU) Statics() (statics []Static, obstacles []Instance) {
	for _, i := range g.Instances {
		p, known := g.profile(i.ProfileID)
		if !known || len(i.Devices) != 1 || i.Devices[0].Slices != p.Slices {
			obstacles = append(obstacles, i)
			continue
		}
		statics = append(statics, Static{GPU: g, Profile: p, Instance: i, Device: i.Devices[0]})
	}
	slices.SortFunc(statics, func(a, b Static) int { return a.Instance.Start - b.Instance.Start })
	return statics, obstacles
}
