package gpu

import (
	"fmt"
	"strings"
)

// Profile is one kind of MIG partition that a board offers.
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
