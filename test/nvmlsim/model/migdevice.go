package model

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// migDevice is a session's handle of a MIG device: a compute instance that is
// used in place of a GPU. It answers what the NVML header says of MIG device
// handles; what else a GPU answers has to be asked of the GPU.
type migDevice struct {
	refuser
	nvml.Device
	instance *computeInstance
}

var _ nvml.Device = migDevice{}

// migDevice is the session's handle of a MIG device. Handles of one are equal.
func (s *Session) migDevice(c *computeInstance) migDevice {
	return migDevice{refuser: refuser{session: s, gpu: c.parent.gpu, target: &c.existence}, instance: c}
}

// visibleDevices are the MIG devices of a GPU that the session sees, at their
// index. A process that does not see all of them counts those that it sees. It
// is called with Machine.mu held.
func (s *Session) visibleDevices(g *gpu) []*computeInstance {
	if !s.confined {
		return g.instances.devices
	}
	var visible []*computeInstance
	for _, c := range g.instances.devices {
		if s.sees(c) {
			visible = append(visible, c)
		}
	}
	return visible
}

// GetMigDeviceHandleByIndex implements nvml.Device.
func (d *device) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	if ret := d.capable("nvmlDeviceGetMigDeviceHandleByIndex"); ret != nvml.SUCCESS {
		return nil, ret
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if index < 0 || index >= len(d.gpu.instances.devices) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	if visible := d.session.visibleDevices(d.gpu); index < len(visible) && visible[index] != nil {
		d.session.opened.migDevice(visible[index])
		return d.session.migDevice(visible[index]), nvml.SUCCESS
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// IsMigDeviceHandle implements nvml.Device.
func (d migDevice) IsMigDeviceHandle() (bool, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceIsMigDeviceHandle", true)
}

// GetDeviceHandleFromMigDeviceHandle implements nvml.Device.
func (d migDevice) GetDeviceHandleFromMigDeviceHandle() (nvml.Device, nvml.Return) {
	return answer[nvml.Device](d.refuser, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", d.session.device(d.gpu))
}

// GetGpuInstanceId implements nvml.Device.
func (d migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceGetGpuInstanceId", d.instance.parent.id)
}

// GetComputeInstanceId implements nvml.Device.
func (d migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceGetComputeInstanceId", d.instance.id)
}

// GetIndex implements nvml.Device: the index below the GPU.
func (d migDevice) GetIndex() (int, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetIndex"); ret != nvml.SUCCESS {
		return 0, ret
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	for index, c := range d.session.visibleDevices(d.gpu) {
		if c == d.instance {
			return index, nvml.SUCCESS
		}
	}
	return 0, nvml.ERROR_INVALID_ARGUMENT
}

// GetName implements nvml.Device: the GPU's name and the profile.
func (d migDevice) GetName() (string, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceGetName", d.gpu.board.ProductName+" MIG "+d.instance.profileName())
}

// GetUUID implements nvml.Device.
func (d migDevice) GetUUID() (string, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceGetUUID", d.instance.uuid)
}

// GetAttributes implements nvml.Device.
func (d migDevice) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	of := d.instance.parent.profile
	return answer(d.refuser, "nvmlDeviceGetAttributes_v2", nvml.DeviceAttributes{
		MultiprocessorCount:       uint32(d.instance.profile.multiprocessors),
		SharedCopyEngineCount:     uint32(of.CopyEngines),
		SharedDecoderCount:        uint32(of.Decoders),
		SharedEncoderCount:        uint32(of.Encoders),
		SharedJpegCount:           uint32(of.JPEGEngines),
		SharedOfaCount:            uint32(of.OFAEngines),
		GpuInstanceSliceCount:     uint32(of.Slices),
		ComputeInstanceSliceCount: uint32(d.instance.profile.slices),
		MemorySizeMB:              of.MemoryMiB,
	})
}

// GetComputeMode implements nvml.Device: MIG devices have no other mode.
func (d migDevice) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceGetComputeMode", nvml.COMPUTEMODE_DEFAULT)
}

// GetComputeRunningProcesses implements nvml.Device.
func (d migDevice) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return answer(d.refuser, "nvmlDeviceGetComputeRunningProcesses_v3",
		d.session.processes(func(at place) bool { return at.instance == d.instance }))
}

// GetUtilizationRates implements nvml.Device: a MIG device reports none (note in nvml.h).
func (d migDevice) GetUtilizationRates() (nvml.Utilization, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetUtilizationRates"); ret != nvml.SUCCESS {
		return nvml.Utilization{}, ret
	}
	return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED
}

// answer answers a call whose value does not change while the handle is valid.
func answer[T any](r refuser, function string, value T) (T, nvml.Return) {
	if ret := r.enter(function); ret != nvml.SUCCESS {
		var zero T
		return zero, ret
	}
	return value, nvml.SUCCESS
}

// read answers a call with a value that it reads with Machine.mu held.
func read[T any](r refuser, function string, value func() T) (T, nvml.Return) {
	if ret := r.enter(function); ret != nvml.SUCCESS {
		var zero T
		return zero, ret
	}
	r.session.machine.mu.Lock()
	defer r.session.machine.mu.Unlock()
	return value(), nvml.SUCCESS
}
