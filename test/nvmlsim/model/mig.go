package model

import "github.com/NVIDIA/go-nvml/pkg/nvml"

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

// GetGpuInstanceProfileInfo implements nvml.Device. Callers enumerate the constants
// upwards until INVALID_ARGUMENT; one that the board lacks is NOT_SUPPORTED.
func (d *device) GetGpuInstanceProfileInfo(profile int) (nvml.GpuInstanceProfileInfo, nvml.Return) {
	if ret := d.capable("nvmlDeviceGetGpuInstanceProfileInfo"); ret != nvml.SUCCESS {
		return nvml.GpuInstanceProfileInfo{}, ret
	}
	if profile < 0 || profile >= nvml.GPU_INSTANCE_PROFILE_COUNT {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p, found := d.gpu.board.MIG.ProfileByEnum(profile)
	if !found {
		return nvml.GpuInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
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

// GetGpuInstancePossiblePlacements implements nvml.Device, with MIG enabled or not.
func (d *device) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	if ret := d.capable("nvmlDeviceGetGpuInstancePossiblePlacements_v2"); ret != nvml.SUCCESS {
		return nil, ret
	}
	p, found := d.gpu.board.MIG.ProfileByID(int(info.Id))
	if !found {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	placements := make([]nvml.GpuInstancePlacement, 0, len(p.Starts))
	for _, start := range p.Starts {
		placements = append(placements, nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)})
	}
	return placements, nvml.SUCCESS
}
