package nvml

import (
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// profileSuffixes distinguish profiles of one size, by NVML's constant: more or fewer media engines,
// or graphics (nvmlGpuInstanceProfile in nvml.h). 1_SLICE_REV2, with double memory, has another size.
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

// readBoard reads what a GPU can be partitioned into; nothing if it does not support MIG. Old drivers
// (R535) list no profiles while MIG is disabled.
func (d *device) readBoard(g *gpu.GPU) error {
	if g.MIG == gpu.MIGUnsupported {
		return nil
	}
	var err error
	if g.MIGSwitchable, err = d.switchable(); err != nil {
		return err
	}
	g.Profiles, err = d.readProfiles(g.MemoryBytes)
	return err
}

// readProfiles lists the GPU instance profiles with a placement, in NVML's order.
func (d *device) readProfiles(total uint64) ([]gpu.Profile, error) {
	listed, err := d.listProfiles()
	if err != nil {
		return nil, err
	}
	var profiles []gpu.Profile
	for _, p := range listed {
		placements, ret := d.GetGpuInstancePossiblePlacements(&p.info)
		if absent(ret) || ret == nvml.SUCCESS && len(placements) == 0 {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, check(ret, fmt.Sprintf("read the placements of MIG profile %d", p.info.Id), d.uuid)
		}
		if !sensible(placements) {
			return nil, fmt.Errorf("read the placements of MIG profile %d of %s: NVML returned %d, the first being %v",
				p.info.Id, d.uuid, len(placements), placements[:min(len(placements), maxInstances)])
		}
		profiles = append(profiles, profileOf(p.number, p.info, placements, total))
	}
	return profiles, nil
}

// sensible reports whether a board can have such placements.
func sensible(placements []nvml.GpuInstancePlacement) bool {
	return len(placements) <= maxInstances && !slices.ContainsFunc(placements, func(p nvml.GpuInstancePlacement) bool {
		return p.Size == 0 || uint64(p.Start)+uint64(p.Size) > maxInstances
	})
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

// profileName is NVIDIA's name of a profile: its part of the board's memory in eighths, rounded up, of
// the board's whole GiB (go-nvlib's getMigMemorySizeGB; a test compares both).
func profileName(computeSlices int, memory, total uint64) string {
	const gib = 1 << 30
	gb := 0.0
	if total > 0 {
		eighths := math.Ceil(float64(memory) / float64(total) * 8)
		gb = math.Round(eighths / 8 * math.Ceil(float64(total)/gib))
	}
	return fmt.Sprintf("%dg.%dgb", computeSlices, int(gb))
}

// migMode is the current mode.
func (d *device) migMode() (gpu.MIGMode, error) {
	current, _, ret := d.GetMigMode()
	mode := gpu.MIGDisabled
	switch {
	case ret == nvml.ERROR_NOT_SUPPORTED:
		mode = gpu.MIGUnsupported
	case ret != nvml.SUCCESS:
		return gpu.MIGUnsupported, check(ret, "read the MIG mode", d.uuid)
	case current == nvml.DEVICE_MIG_ENABLE:
		mode = gpu.MIGEnabled
	}
	d.disabled.Store(mode != gpu.MIGEnabled)
	return mode, nil
}
