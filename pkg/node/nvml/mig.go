package nvml

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// profileSuffixes are what tells profiles of one size apart, by NVML's
// constant: media engines more or less, or graphics (nvmlGpuInstanceProfile in
// nvml.h). 1_SLICE_REV2, with double memory, has another size.
var profileSuffixes = map[int]string{
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1:   "+me",
	nvml.GPU_INSTANCE_PROFILE_2_SLICE_REV1:   "+me",
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_GFX:    "+gfx",
	nvml.GPU_INSTANCE_PROFILE_2_SLICE_GFX:    "+gfx",
	nvml.GPU_INSTANCE_PROFILE_3_SLICE_GFX:    "+gfx",
	nvml.GPU_INSTANCE_PROFILE_4_SLICE_GFX:    "+gfx",
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_NO_ME:  "-me",
	nvml.GPU_INSTANCE_PROFILE_2_SLICE_NO_ME:  "-me",
	nvml.GPU_INSTANCE_PROFILE_1_SLICE_ALL_ME: "+me.all",
	nvml.GPU_INSTANCE_PROFILE_2_SLICE_ALL_ME: "+me.all",
}

// readMIG reads what can be made of a GPU and what is made of it. A board that
// cannot be partitioned has none of it. Old drivers (R535) list no profiles
// while MIG is disabled.
func readMIG(handle nvml.Device, name string, g *gpu.GPU) error {
	if g.MIG == gpu.MIGUnsupported {
		return nil
	}
	var err error
	if g.MIGSwitchable, err = resetless(handle, name); err != nil {
		return err
	}
	if g.Profiles, err = readProfiles(handle, name, g.MemoryBytes); err != nil {
		return err
	}
	g.Instances, err = readInstancesNow(handle, name, g.MIG)
	return err
}

// readInstancesNow spares a GPU on which nothing can be the questions.
func readInstancesNow(handle nvml.Device, name string, mode gpu.MIGMode) ([]gpu.Instance, error) {
	if mode != gpu.MIGEnabled {
		return nil, nil
	}
	return readInstances(handle, name)
}

// readProfiles lists the GPU instance profiles, each once, in NVML's order.
func readProfiles(handle nvml.Device, name string, total uint64) ([]gpu.Profile, error) {
	var profiles []gpu.Profile
	for number := range nvml.GPU_INSTANCE_PROFILE_COUNT {
		info, ret := handle.GetGpuInstanceProfileInfo(number)
		if absent(ret) {
			continue // a profile of other boards, or newer than the driver
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, "read a MIG profile", name)
		}
		if slices.ContainsFunc(profiles, func(p gpu.Profile) bool { return p.ID == int(info.Id) }) {
			continue // one profile under two constants
		}
		placements, ret := handle.GetGpuInstancePossiblePlacements(&info)
		if absent(ret) || ret == nvml.SUCCESS && len(placements) == 0 {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, fmt.Sprintf("read the placements of MIG profile %d", info.Id), name)
		}
		profiles = append(profiles, profileOf(number, info, placements, total))
	}
	return profiles, nil
}

func absent(ret nvml.Return) bool {
	return ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT
}

func profileOf(number int, info nvml.GpuInstanceProfileInfo, placements []nvml.GpuInstancePlacement, total uint64) gpu.Profile {
	p := gpu.Profile{
		ID:          int(info.Id),
		Name:        profileName(int(info.SliceCount), info.MemorySizeMB<<20, total) + profileSuffixes[number],
		Slices:      int(info.SliceCount),
		Size:        int(placements[0].Size),
		MemoryBytes: info.MemorySizeMB << 20, // NVML's MB are MiB
		Engines: gpu.Engines{
			Multiprocessors: int(info.MultiprocessorCount),
			CopyEngines:     int(info.CopyEngineCount),
			Decoders:        int(info.DecoderCount),
			Encoders:        int(info.EncoderCount),
			JPEGEngines:     int(info.JpegCount),
			OFAEngines:      int(info.OfaCount),
		},
	}
	for _, placement := range placements {
		if int(placement.Size) == p.Size { // it is on every board that was captured
			p.Starts = append(p.Starts, int(placement.Start))
		}
	}
	slices.Sort(p.Starts)
	return p
}

// profileName is how NVIDIA's tools name a profile: its part of the board's
// memory in eighths, rounded up, of the board's whole GiB (go-nvlib's
// getMigMemorySizeGB, which a test holds it against).
func profileName(computeSlices int, memory, total uint64) string {
	const gib = 1 << 30
	gb := 0.0
	if total > 0 {
		eighths := math.Ceil(float64(memory) / float64(total) * 8)
		gb = math.Round(eighths / 8 * math.Ceil(float64(total)/gib))
	}
	return fmt.Sprintf("%dg.%dgb", computeSlices, int(gb))
}

// Refresh reads the MIG mode and the instances of GPUs anew, which is all that
// changes while the driver is loaded. It is cheap enough to be called every few
// seconds. A GPU that has no MIG, or cannot be read, is returned as it was.
func (l *Library) Refresh(gpus []gpu.GPU) ([]gpu.GPU, error) {
	var failures []error
	refreshed := slices.Clone(gpus)
	for i := range refreshed {
		g := &refreshed[i]
		if g.MIG == gpu.MIGUnsupported {
			continue
		}
		before := *g
		if err := l.refresh(g); err != nil {
			*g = before
			failures = append(failures, err)
		}
	}
	return refreshed, errors.Join(failures...)
}

func (l *Library) refresh(g *gpu.GPU) error {
	handle, err := l.open(g.UUID)
	if err != nil {
		return err
	}
	if g.MIG, err = readMIGMode(handle, g.UUID); err != nil {
		return err
	}
	if len(g.Profiles) == 0 && g.MIG == gpu.MIGEnabled {
		if g.Profiles, err = readProfiles(handle, g.UUID, g.MemoryBytes); err != nil {
			return err
		}
	}
	g.Instances, err = readInstancesNow(handle, g.UUID, g.MIG)
	return err
}

func readMIGMode(handle nvml.Device, name string) (gpu.MIGMode, error) {
	switch current, _, ret := handle.GetMigMode(); {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		return gpu.MIGUnsupported, nil
	case ret != nvml.SUCCESS:
		return gpu.MIGUnsupported, check(ret, "read the MIG mode", name)
	case current == nvml.DEVICE_MIG_ENABLE:
		return gpu.MIGEnabled, nil
	}
	return gpu.MIGDisabled, nil
}
