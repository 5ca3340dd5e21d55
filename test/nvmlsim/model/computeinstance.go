package model

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// computeInstanceHandle is a session's handle of a compute instance.
type computeInstanceHandle struct {
	refuser
	nvml.ComputeInstance // panics when a function that is not modelled is called
	instance             *computeInstance
}

var _ nvml.ComputeInstance = computeInstanceHandle{}

// computeHandleOf is the session's handle of a compute instance.
func (s *Session) computeHandleOf(c *computeInstance) computeInstanceHandle {
	return computeInstanceHandle{refuser: refuser{session: s, gpu: c.parent.gpu, target: &c.existence}, instance: c}
}

// GetComputeInstanceProfileInfo implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetComputeInstanceProfileInfo(profile, engines int) (nvml.ComputeInstanceProfileInfo, nvml.Return) {
	if ret := h.enter("nvmlGpuInstanceGetComputeInstanceProfileInfo"); ret != nvml.SUCCESS {
		return nvml.ComputeInstanceProfileInfo{}, ret
	}
	if profile < 0 || profile >= nvml.COMPUTE_INSTANCE_PROFILE_COUNT ||
		engines < 0 || engines >= nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_INVALID_ARGUMENT
	}
	p, found := h.instance.computeProfile(profile)
	if !found {
		return nvml.ComputeInstanceProfileInfo{}, nvml.ERROR_NOT_SUPPORTED
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

// CreateComputeInstance implements nvml.GpuInstance.
func (h gpuInstanceHandle) CreateComputeInstance(info *nvml.ComputeInstanceProfileInfo) (nvml.ComputeInstance, nvml.Return) {
	var created *computeInstance
	ret := h.change("nvmlGpuInstanceCreateComputeInstance", func() (ret nvml.Return) {
		p, found := h.instance.computeProfile(int(info.Id))
		if !found {
			return nvml.ERROR_NOT_SUPPORTED
		}
		created, ret = h.instance.createCompute(p)
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return h.session.computeHandleOf(created), nvml.SUCCESS
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
