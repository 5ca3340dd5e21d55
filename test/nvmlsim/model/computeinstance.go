package model

import (
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// VersionedGpuInstance is a GPU instance of a session with the calls that
// go-nvml offers through a handler, which only go-nvml itself can make.
type VersionedGpuInstance interface {
	nvml.GpuInstance
	// ComputeInstanceProfileInfoV2 is GetComputeInstanceProfileInfoV(profile, engines).V2().
	ComputeInstanceProfileInfoV2(profile, engines int) (nvml.ComputeInstanceProfileInfo_v2, nvml.Return)
	// ComputeInstanceProfileInfoV3 is GetComputeInstanceProfileInfoV(profile, engines).V3().
	ComputeInstanceProfileInfoV3(profile, engines int) (nvml.ComputeInstanceProfileInfo_v3, nvml.Return)
}

// computeInstanceHandle is a session's handle of a compute instance.
type computeInstanceHandle struct {
	unsupportedComputeInstance
	instance *computeInstance
}

var _ nvml.ComputeInstance = computeInstanceHandle{}

// computeHandleOf is the session's handle of a compute instance.
func (s *Session) computeHandleOf(c *computeInstance) computeInstanceHandle {
	return computeInstanceHandle{unsupportedComputeInstance{refuser{session: s, gpu: c.parent.gpu, target: &c.existence}}, c}
}

// GetComputeInstanceProfileInfo implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetComputeInstanceProfileInfo(profile, engines int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	p, ret := h.computeProfileByEnum("nvmlGpuInstanceGetComputeInstanceProfileInfo", profile, engines)
	if ret != nvml.SUCCESS {
		return nvml.ComputeInstanceProfileInfo{}, ret
	}
	of := h.instance.profile
	return nvml.ComputeInstanceProfileInfo{
		Id:                    uint32(p.id),
		SliceCount:            uint32(p.slices),
		InstanceCount:         uint32(len(p.starts)),
		MultiprocessorCount:   uint32(p.multiprocessors),
		SharedCopyEngineCount: uint32(of.CopyEngines),
		SharedDecoderCount:    uint32(of.Decoders),
		SharedEncoderCount:    uint32(of.Encoders),
		SharedJpegCount:       uint32(of.JPEGEngines),
		SharedOfaCount:        uint32(of.OFAEngines),
	}, nvml.SUCCESS
}

// ComputeInstanceProfileInfoV2 implements VersionedGpuInstance.
func (h gpuInstanceHandle) ComputeInstanceProfileInfoV2(profile, engines int) (nvml.ComputeInstanceProfileInfo_v2, nvml.Return) {
	var info nvml.ComputeInstanceProfileInfo_v2
	info.Version = nvml.STRUCT_VERSION(info, 2)
	p, ret := h.computeProfileByEnum("nvmlGpuInstanceGetComputeInstanceProfileInfoV", profile, engines)
	if ret != nvml.SUCCESS {
		return info, ret
	}
	of := h.instance.profile
	info.Id = uint32(p.id)
	info.SliceCount = uint32(p.slices)
	info.InstanceCount = uint32(len(p.starts))
	info.MultiprocessorCount = uint32(p.multiprocessors)
	info.SharedCopyEngineCount = uint32(of.CopyEngines)
	info.SharedDecoderCount = uint32(of.Decoders)
	info.SharedEncoderCount = uint32(of.Encoders)
	info.SharedJpegCount = uint32(of.JPEGEngines)
	info.SharedOfaCount = uint32(of.OFAEngines)
	putString(info.Name[:], "MIG "+p.nameIn(of))
	return info, nvml.SUCCESS
}

// ComputeInstanceProfileInfoV3 implements VersionedGpuInstance.
func (h gpuInstanceHandle) ComputeInstanceProfileInfoV3(profile, engines int) (nvml.ComputeInstanceProfileInfo_v3, nvml.Return) {
	v2, ret := h.ComputeInstanceProfileInfoV2(profile, engines)
	info := nvml.ComputeInstanceProfileInfo_v3{
		Id:                    v2.Id,
		SliceCount:            v2.SliceCount,
		InstanceCount:         v2.InstanceCount,
		MultiprocessorCount:   v2.MultiprocessorCount,
		SharedCopyEngineCount: v2.SharedCopyEngineCount,
		SharedDecoderCount:    v2.SharedDecoderCount,
		SharedEncoderCount:    v2.SharedEncoderCount,
		SharedJpegCount:       v2.SharedJpegCount,
		SharedOfaCount:        v2.SharedOfaCount,
		Name:                  v2.Name,
	}
	info.Version = nvml.STRUCT_VERSION(info, 3)
	if ret == nvml.SUCCESS && h.instance.profile.Graphics {
		info.Capabilities = nvml.COMPUTE_INSTANCE_PROFILE_CAPS_GFX
	}
	return info, ret
}

// computeProfileByEnum finds a profile by NVML constant, as profileByEnum does.
func (h gpuInstanceHandle) computeProfileByEnum(function string, profile, engines int) (computeProfile, nvml.Return) {
	if ret := h.enter(function); ret != nvml.SUCCESS {
		return computeProfile{}, ret
	}
	if profile < 0 || profile >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT ||
		engines < 0 || engines >= nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT {
		return computeProfile{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p, found := h.instance.computeProfile(profile)
	if !found {
		return computeProfile{}, nvml.ERROR_NOT_SUPPORTED
	}
	return p, nvml.SUCCESS
}

// GetComputeInstancePossiblePlacements implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetComputeInstancePossiblePlacements(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstancePlacement, nvml.Return) {
	p, ret := h.computeProfileOf("nvmlGpuInstanceGetComputeInstancePossiblePlacements", info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	placements := make([]nvml.ComputeInstancePlacement, 0, len(p.starts))
	for _, start := range p.starts {
		placements = append(placements, nvml.ComputeInstancePlacement{Start: uint32(start), Size: uint32(p.slices)})
	}
	return placements, nvml.SUCCESS
}

// GetComputeInstanceRemainingCapacity implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetComputeInstanceRemainingCapacity(info *nvml.ComputeInstanceProfileInfo) (int, nvml.Return) {
	p, ret := h.computeProfileOf("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", info)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	h.session.machine.mu.Lock()
	defer h.session.machine.mu.Unlock()
	return len(h.instance.freeComputeStarts(p)), nvml.SUCCESS
}

// computeProfileOf enters a function that takes a profile by its ID.
func (h gpuInstanceHandle) computeProfileOf(function string, info *nvml.ComputeInstanceProfileInfo) (computeProfile, nvml.Return) {
	if info == nil {
		return computeProfile{}, h.refuseNil(function)
	}
	if ret := h.enter(function); ret != nvml.SUCCESS {
		return computeProfile{}, ret
	}
	p, found := h.instance.computeProfile(int(info.Id))
	if !found {
		return computeProfile{}, nvml.ERROR_NOT_SUPPORTED
	}
	return p, nvml.SUCCESS
}

// CreateComputeInstance implements nvml.GpuInstance.
func (h gpuInstanceHandle) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	const function = "nvmlGpuInstanceCreateComputeInstance"
	if info == nil {
		return nil, h.refuseNil(function)
	}
	return h.createCompute(function, info.Id, nil)
}

// CreateComputeInstanceWithPlacement implements nvml.GpuInstance.
func (h gpuInstanceHandle) CreateComputeInstanceWithPlacement(info *nvml.ComputeInstanceProfileInfo, placement *nvml.ComputeInstancePlacement) (nvml.ComputeInstance, nvml.Return) {
	const function = "nvmlGpuInstanceCreateComputeInstanceWithPlacement"
	if info == nil || placement == nil {
		return nil, h.refuseNil(function)
	}
	return h.createCompute(function, info.Id, placement)
}

func (h gpuInstanceHandle) createCompute(function string, profileID uint32, placement *nvml.ComputeInstancePlacement) (nvml.ComputeInstance, nvml.Return) {
	var created *computeInstance
	ret := h.change(function, func() (ret nvml.Return) {
		p, found := h.instance.computeProfile(int(profileID))
		if !found {
			return nvml.ERROR_NOT_SUPPORTED
		}
		var start *int
		if placement != nil {
			if placement.Size != uint32(p.slices) {
				return nvml.ERROR_INVALID_ARGUMENT
			}
			n := int(placement.Start)
			start = &n
		}
		created, ret = h.instance.createCompute(p, start)
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return h.session.computeHandleOf(created), nvml.SUCCESS
}

// GetComputeInstances implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetComputeInstances(info *nvml.ComputeInstanceProfileInfo) ([]nvml.ComputeInstance, nvml.Return) {
	const function = "nvmlGpuInstanceGetComputeInstances"
	if info == nil || info.InstanceCount == 0 {
		return nil, h.refuseNil(function)
	}
	p, ret := h.computeProfileOf(function, info)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	h.session.machine.mu.Lock()
	defer h.session.machine.mu.Unlock()
	list := []nvml.ComputeInstance{}
	for _, id := range slices.Sorted(maps.Keys(h.instance.compute)) {
		c := h.instance.compute[id]
		if c.profile.id == p.id && h.session.sees(c) {
			list = append(list, h.session.computeHandleOf(c))
		}
	}
	return list, nvml.SUCCESS
}

// GetComputeInstanceById implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetComputeInstanceById(id int) (nvml.ComputeInstance, nvml.Return) {
	if ret := h.enter("nvmlGpuInstanceGetComputeInstanceById"); ret != nvml.SUCCESS {
		return nil, ret
	}
	h.session.machine.mu.Lock()
	defer h.session.machine.mu.Unlock()
	c := h.instance.compute[id]
	switch {
	case c == nil:
		return nil, nvml.ERROR_NOT_FOUND
	case !h.session.sees(c):
		return nil, nvml.ERROR_NO_PERMISSION
	}
	return h.session.computeHandleOf(c), nvml.SUCCESS
}

// GetInfo implements nvml.ComputeInstance. The device in it is the MIG device.
func (h computeInstanceHandle) GetInfo() (nvml.ComputeInstanceInfo, nvml.Return) {
	if ret := h.enter("nvmlComputeInstanceGetInfo_v2"); ret != nvml.SUCCESS {
		return nvml.ComputeInstanceInfo{}, ret
	}
	c := h.instance
	return nvml.ComputeInstanceInfo{
		Device:      h.session.migDevice(c),
		GpuInstance: h.session.handleOf(c.parent),
		Id:          uint32(c.id),
		ProfileId:   uint32(c.profile.id),
		Placement:   nvml.ComputeInstancePlacement{Start: uint32(c.start), Size: uint32(c.profile.slices)},
	}, nvml.SUCCESS
}

// Destroy implements nvml.ComputeInstance.
func (h computeInstanceHandle) Destroy() nvml.Return {
	return h.change("nvmlComputeInstanceDestroy", h.instance.destroy)
}
