package model

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// capable enters a function that only GPUs with MIG support.
func (d *device) capable(function string) nvml.Return {
	if ret := d.enter(function); ret != nvml.SUCCESS {
		return ret
	}
	if d.gpu.board.MIG == nil {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.SUCCESS
}

// GetGpuInstanceProfileInfo implements nvml.Device.
func (d *device) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	p, ret := d.profileByEnum("nvmlDeviceGetGpuInstanceProfileInfo", profile)
	if ret != nvml.SUCCESS {
		return nvml.GpuInstanceProfileInfo{}, ret
	}
	return nvml.GpuInstanceProfileInfo{
		Id:                  uint32(p.ID),
		SliceCount:          uint32(p.Slices),
		InstanceCount:       uint32(p.MaxInstances),
		MultiprocessorCount: uint32(p.Multiprocessors),
		CopyEngineCount:     uint32(p.CopyEngines),
		DecoderCount:        uint32(p.Decoders),
		EncoderCount:        uint32(p.Encoders),
		JpegCount:           uint32(p.JPEGEngines),
		OfaCount:            uint32(p.OFAEngines),
		MemorySizeMB:        p.MemoryMiB,
	}, nvml.SUCCESS
}

// profileByEnum finds a profile by NVML constant. Callers enumerate the constants
// upwards until INVALID_ARGUMENT; one that the board lacks is NOT_SUPPORTED.
func (d *device) profileByEnum(function string, profile int) (catalog.Profile, nvml.Return) {
	if ret := d.capable(function); ret != nvml.SUCCESS {
		return catalog.Profile{}, ret
	}
	if profile < 0 || profile >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return catalog.Profile{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p, found := d.gpu.board.MIG.ProfileByEnum(profile)
	if !found {
		return catalog.Profile{}, nvml.ERROR_NOT_SUPPORTED
	}
	return p, nvml.SUCCESS
}

// profileByID finds a profile by the ID that its info carries.
func (d *device) profileByID(function string, id uint32) (catalog.Profile, nvml.Return) {
	if ret := d.capable(function); ret != nvml.SUCCESS {
		return catalog.Profile{}, ret
	}
	p, found := d.gpu.board.MIG.ProfileByID(int(id))
	if !found {
		return catalog.Profile{}, nvml.ERROR_NOT_SUPPORTED
	}
	return p, nvml.SUCCESS
}

// GetGpuInstancePossiblePlacements implements nvml.Device, with MIG enabled or not.
func (d *device) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	const function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	p, ret := d.profileByID(function, info.Id)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	placements := make([]nvml.GpuInstancePlacement, 0, len(p.Starts))
	for _, start := range p.Starts {
		placements = append(placements, nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)})
	}
	return placements, nvml.SUCCESS
}
