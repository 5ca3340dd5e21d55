package catalog

import (
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Geometry says how a board divides into GPU instances.
type Geometry struct {
	// Name identifies the geometry in this catalogue.
	Name string `json:"name"`
	// PCIDeviceIDs are the boards on which it was captured.
	PCIDeviceIDs []PCIDeviceID `json:"pciDeviceIDs"`
	// MemorySlices is how many units placements are counted in: 8, 4 or 12.
	MemorySlices int `json:"memorySlices"`
	// Source says where the numbers of the profiles were captured.
	Source string `json:"source"`
	// Profiles are the GPU instance profiles that the board offers.
	Profiles []Profile `json:"profiles"`
}

// Profile is one GPU instance profile of a board.
type Profile struct {
	// Name is how nvidia-smi writes the profile, for example "1g.10gb+me".
	Name string `json:"name"`
	// Enum is the NVML_GPU_INSTANCE_PROFILE_* constant that
	// nvmlDeviceGetGpuInstanceProfileInfo takes.
	Enum int `json:"enum"`
	// ID is the profile ID that NVML returns in the profile's info and that
	// placement and creation calls take: another number space than Enum, and
	// one in which the same number means different profiles on different boards.
	ID int `json:"id"`
	// Slices is the number of compute slices.
	Slices int `json:"slices"`
	// Starts are the first memory units of the legal placements, ascending.
	Starts []int `json:"starts"`
	// Size is how many memory units each placement covers.
	Size int `json:"size"`
	// MemoryMiB is the memory of an instance as the driver lists it with the
	// profile, in MiB. It moves by eighths of a GiB with driver and firmware:
	// never treat it as identity.
	MemoryMiB uint64 `json:"memoryMiB"`
	// Multiprocessors, CopyEngines, Decoders, Encoders, JPEGEngines and
	// OFAEngines are what an instance owns.
	Multiprocessors int `json:"sm"`
	CopyEngines     int `json:"ce"`
	Decoders        int `json:"dec"`
	Encoders        int `json:"enc"`
	JPEGEngines     int `json:"jpeg"`
	OFAEngines      int `json:"ofa"`
	// MaxInstances is how many instances of the profile fit on an empty GPU.
	MaxInstances int `json:"max"`
	// Graphics reports whether instances can run graphics workloads.
	Graphics bool `json:"graphics,omitempty"`
	// Unverified names the fields above whose number was not captured from
	// hardware, in this file's spelling.
	Unverified []string `json:"unverified,omitempty"`
}

// GPU is the profile as NVML would list it on a node.
func (p Profile) GPU() gpu.Profile {
	return gpu.Profile{
		ID: p.ID, Name: p.Name, Slices: p.Slices,
		Starts: slices.Clone(p.Starts), Size: p.Size,
		MemoryBytes: p.MemoryMiB << 20,
		Engines: gpu.Engines{
			Multiprocessors: p.Multiprocessors,
			CopyEngines:     p.CopyEngines,
			Decoders:        p.Decoders,
			Encoders:        p.Encoders,
			JPEGEngines:     p.JPEGEngines,
			OFAEngines:      p.OFAEngines,
		},
	}
}

// GPUProfiles are the profiles as NVML would list them on a node.
func (g Geometry) GPUProfiles() []gpu.Profile {
	profiles := make([]gpu.Profile, 0, len(g.Profiles))
	for _, p := range g.Profiles {
		profiles = append(profiles, p.GPU())
	}
	return profiles
}

// ProfileByEnum returns the profile behind an NVML_GPU_INSTANCE_PROFILE_* constant.
func (g Geometry) ProfileByEnum(enum int) (Profile, bool) {
	return g.profile(func(p Profile) bool { return p.Enum == enum })
}

// ProfileByID returns the profile with the board's profile ID id.
func (g Geometry) ProfileByID(id int) (Profile, bool) {
	return g.profile(func(p Profile) bool { return p.ID == id })
}

// ProfileByName returns the profile that nvidia-smi lists as name.
func (g Geometry) ProfileByName(name string) (Profile, bool) {
	return g.profile(func(p Profile) bool { return p.Name == name })
}

func (g Geometry) profile(match func(Profile) bool) (Profile, bool) {
	i := slices.IndexFunc(g.Profiles, match)
	if i < 0 {
		return Profile{}, false
	}
	return g.Profiles[i], true
}

func (g Geometry) validate() error {
	if g.Name == "" || g.Source == "" || len(g.PCIDeviceIDs) == 0 || g.MemorySlices < 1 {
		return fmt.Errorf("MIG geometry %q lacks its name, source, PCI device IDs or memory slices", g.Name)
	}
	enums, ids, names := map[int]bool{}, map[int]bool{}, map[string]bool{}
	for _, p := range g.Profiles {
		if enums[p.Enum] || ids[p.ID] || names[p.Name] {
			return fmt.Errorf("MIG geometry %q repeats the enum, ID or name of profile %q", g.Name, p.Name)
		}
		enums[p.Enum], ids[p.ID], names[p.Name] = true, true, true
		if err := p.validate(g.MemorySlices); err != nil {
			return fmt.Errorf("MIG geometry %q: %w", g.Name, err)
		}
	}
	return nil
}

func (p Profile) validate(memorySlices int) error {
	if p.Name == "" || p.Slices < 1 || p.Size < 1 || len(p.Starts) == 0 || p.MemoryMiB == 0 || p.Multiprocessors < 1 || p.MaxInstances < 1 {
		return fmt.Errorf("profile %q lacks a number that every profile has", p.Name)
	}
	if !slices.IsSorted(p.Starts) {
		return fmt.Errorf("placements of profile %q are not in ascending order", p.Name)
	}
	if first, last := p.Starts[0], p.Starts[len(p.Starts)-1]; first < 0 || last+p.Size > memorySlices {
		return fmt.Errorf("placements of profile %q leave the board's %d memory slices", p.Name, memorySlices)
	}
	return nil
}
