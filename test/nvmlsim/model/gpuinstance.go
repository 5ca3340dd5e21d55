package model

import (
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// gpuInstanceHandle is a session's handle of a GPU instance. Handles of one
// instance are equal. One of an instance that is gone is invalid for good, also
// when the next instance has its ID.
type gpuInstanceHandle struct {
	refuser
	nvml.GpuInstance
	instance *gpuInstance
}

var _ nvml.GpuInstance = gpuInstanceHandle{}

// handleOf is the session's handle of a GPU instance.
func (s *Session) handleOf(i *gpuInstance) gpuInstanceHandle {
	return gpuInstanceHandle{refuser: refuser{session: s, gpu: i.gpu, target: &i.existence}, instance: i}
}

// withInstances enters a function that only GPUs on which MIG is enabled have,
// and leaves it with Machine.mu held if it succeeds.
func (d *device) withInstances(function string) nvml.Return {
	if ret := d.capable(function); ret != nvml.SUCCESS {
		return ret
	}
	d.session.machine.mu.Lock()
	if d.gpu.migEnabled() {
		return nvml.SUCCESS
	}
	d.session.machine.mu.Unlock()
	return nvml.ERROR_NOT_SUPPORTED
}

// GetGpuInstanceRemainingCapacity implements nvml.Device.
func (d *device) GetGpuInstanceRemainingCapacity(info *nvml.GpuInstanceProfileInfo) (int, nvml.Return) {
	if ret := d.withInstances("nvmlDeviceGetGpuInstanceRemainingCapacity"); ret != nvml.SUCCESS {
		return 0, ret
	}
	defer d.session.machine.mu.Unlock()
	p, found := d.gpu.board.MIG.ProfileByID(int(info.Id))
	if !found {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return d.gpu.remaining(p), nvml.SUCCESS
}

// CreateGpuInstanceWithPlacement implements nvml.Device.
func (d *device) CreateGpuInstanceWithPlacement(info *nvml.GpuInstanceProfileInfo, placement *nvml.GpuInstancePlacement) (nvml.GpuInstance, nvml.Return) {
	var created *gpuInstance
	ret := d.change("nvmlDeviceCreateGpuInstanceWithPlacement", func() (ret nvml.Return) {
		if !d.gpu.migEnabled() {
			return nvml.ERROR_NOT_SUPPORTED
		}
		p, found := d.gpu.board.MIG.ProfileByID(int(info.Id))
		if !found || placement.Size != uint32(p.Size) {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		start := int(placement.Start)
		created, ret = d.gpu.create(p, &start)
		return ret
	})
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	return d.session.handleOf(created), nvml.SUCCESS
}

// GetGpuInstances implements nvml.Device.
func (d *device) GetGpuInstances(info *nvml.GpuInstanceProfileInfo) ([]nvml.GpuInstance, nvml.Return) {
	if ret := d.withInstances("nvmlDeviceGetGpuInstances"); ret != nvml.SUCCESS {
		return nil, ret
	}
	defer d.session.machine.mu.Unlock()
	if _, found := d.gpu.board.MIG.ProfileByID(int(info.Id)); !found {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	list := []nvml.GpuInstance{}
	for _, id := range slices.Sorted(maps.Keys(d.gpu.instances.byID)) {
		i := d.gpu.instances.byID[id]
		if uint32(i.profile.ID) == info.Id && d.session.mayUse(i) {
			list = append(list, d.session.handleOf(i))
		}
	}
	return list, nvml.SUCCESS
}

// GetGpuInstanceById implements nvml.Device.
func (d *device) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	if ret := d.withInstances("nvmlDeviceGetGpuInstanceById"); ret != nvml.SUCCESS {
		return nil, ret
	}
	defer d.session.machine.mu.Unlock()
	i := d.gpu.instances.byID[id]
	switch {
	case i == nil:
		return nil, nvml.ERROR_NOT_FOUND
	case !d.session.mayUse(i):
		return nil, nvml.ERROR_NO_PERMISSION
	}
	return d.session.handleOf(i), nvml.SUCCESS
}

// GetInfo implements nvml.GpuInstance.
func (h gpuInstanceHandle) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	if ret := h.enter("nvmlGpuInstanceGetInfo"); ret != nvml.SUCCESS {
		return nvml.GpuInstanceInfo{}, ret
	}
	return nvml.GpuInstanceInfo{
		Device:    h.session.device(h.gpu),
		Id:        uint32(h.instance.id),
		ProfileId: uint32(h.instance.profile.ID),
		Placement: nvml.GpuInstancePlacement{Start: uint32(h.instance.start), Size: uint32(h.instance.profile.Size)},
	}, nvml.SUCCESS
}

// Destroy implements nvml.GpuInstance.
func (h gpuInstanceHandle) Destroy() nvml.Return {
	return h.change("nvmlGpuInstanceDestroy", h.instance.destroy)
}
