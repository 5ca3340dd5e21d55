package model

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// VersionedDevice is a device of a session with the calls that go-nvml offers
// through handlers, which only go-nvml itself can make. The Version field of the
// results is filled in as go-nvml's handlers do.
type VersionedDevice interface {
	nvml.Device
	// GpuInstanceProfileInfoV2 is GetGpuInstanceProfileInfoV(profile).V2().
	GpuInstanceProfileInfoV2(profile int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return)
	// GpuInstanceProfileInfoV3 is GetGpuInstanceProfileInfoV(profile).V3().
	GpuInstanceProfileInfoV3(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
	// GpuInstanceProfileInfoByIDV2 is GetGpuInstanceProfileInfoByIdV(id).V2().
	GpuInstanceProfileInfoByIDV2(id int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return)
	// GpuInstanceProfileInfoByIDV3 is GetGpuInstanceProfileInfoByIdV(id).V3().
	GpuInstanceProfileInfoByIDV3(id int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return)
	// GpuFabricInfoV2 is GetGpuFabricInfoV().V2().
	GpuFabricInfoV2() (nvml.GpuFabricInfo_v2, nvml.Return)
	// GpuFabricInfoV3 is GetGpuFabricInfoV().V3().
	GpuFabricInfoV3() (nvml.GpuFabricInfo_v3, nvml.Return)
}

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

// GpuInstanceProfileInfoV2 implements VersionedDevice.
func (d *device) GpuInstanceProfileInfoV2(profile int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return) {
	p, ret := d.profileByEnum("nvmlDeviceGetGpuInstanceProfileInfoV", profile)
	return profileInfoV2(p, ret), ret
}

// GpuInstanceProfileInfoV3 implements VersionedDevice.
func (d *device) GpuInstanceProfileInfoV3(profile int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	p, ret := d.profileByEnum("nvmlDeviceGetGpuInstanceProfileInfoV", profile)
	return profileInfoV3(p, ret), ret
}

// GpuInstanceProfileInfoByIDV2 implements VersionedDevice.
func (d *device) GpuInstanceProfileInfoByIDV2(id int) (nvml.GpuInstanceProfileInfo_v2, nvml.Return) {
	p, ret := d.profileByID("nvmlDeviceGetGpuInstanceProfileInfoByIdV", uint32(id))
	return profileInfoV2(p, ret), ret
}

// GpuInstanceProfileInfoByIDV3 implements VersionedDevice.
func (d *device) GpuInstanceProfileInfoByIDV3(id int) (nvml.GpuInstanceProfileInfo_v3, nvml.Return) {
	p, ret := d.profileByID("nvmlDeviceGetGpuInstanceProfileInfoByIdV", uint32(id))
	return profileInfoV3(p, ret), ret
}

func profileInfoV2(p catalog.Profile, ret nvml.Return) nvml.GpuInstanceProfileInfo_v2 {
	var info nvml.GpuInstanceProfileInfo_v2
	info.Version = nvml.STRUCT_VERSION(info, 2)
	if ret != nvml.SUCCESS {
		return info
	}
	info.Id = uint32(p.ID)
	info.SliceCount = uint32(p.Slices)
	info.InstanceCount = uint32(p.MaxInstances)
	info.MultiprocessorCount = uint32(p.Multiprocessors)
	info.CopyEngineCount = uint32(p.CopyEngines)
	info.DecoderCount = uint32(p.Decoders)
	info.EncoderCount = uint32(p.Encoders)
	info.JpegCount = uint32(p.JPEGEngines)
	info.OfaCount = uint32(p.OFAEngines)
	info.MemorySizeMB = p.MemoryMiB
	putString(info.Name[:], "MIG "+p.Name)
	return info
}

func profileInfoV3(p catalog.Profile, ret nvml.Return) nvml.GpuInstanceProfileInfo_v3 {
	v2 := profileInfoV2(p, ret)
	info := nvml.GpuInstanceProfileInfo_v3{
		Id:                  v2.Id,
		SliceCount:          v2.SliceCount,
		InstanceCount:       v2.InstanceCount,
		MultiprocessorCount: v2.MultiprocessorCount,
		CopyEngineCount:     v2.CopyEngineCount,
		DecoderCount:        v2.DecoderCount,
		EncoderCount:        v2.EncoderCount,
		JpegCount:           v2.JpegCount,
		OfaCount:            v2.OfaCount,
		MemorySizeMB:        v2.MemorySizeMB,
		Name:                v2.Name,
	}
	info.Version = nvml.STRUCT_VERSION(info, 3)
	if p.Graphics {
		info.Capabilities = nvml.GPU_INSTANCE_PROFILE_CAPS_GFX
	}
	return info
}

// GetGpuInstancePossiblePlacements implements nvml.Device, with MIG enabled or not.
func (d *device) GetGpuInstancePossiblePlacements(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstancePlacement, nvml.Return) {
	const function = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	if info == nil {
		return nil, d.refuseNil(function)
	}
	p, ret := d.profileByID(function, info.Id)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	placements := make([]nvml.GpuInstancePlacement, 0, len(p.Starts))
	for _, pl := range p.Placements() {
		placements = append(placements, nvml.GpuInstancePlacement{Start: uint32(pl.Start), Size: uint32(pl.Size)})
	}
	return placements, nvml.SUCCESS
}
