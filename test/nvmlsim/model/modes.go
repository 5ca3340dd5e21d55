package model

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// GetPersistenceMode implements nvml.Device.
func (d *device) GetPersistenceMode() (nvml.EnableState, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetPersistenceMode", func() nvml.EnableState { return d.gpu.persistence })
}

// SetPersistenceMode implements nvml.Device.
func (d *device) SetPersistenceMode(mode nvml.EnableState) nvml.Return {
	if ret := d.enter("nvmlDeviceSetPersistenceMode"); ret != nvml.SUCCESS {
		return ret
	}
	if mode != nvml.FEATURE_ENABLED && mode != nvml.FEATURE_DISABLED {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if d.session.unprivileged {
		return nvml.ERROR_NO_PERMISSION
	}
	d.session.machine.mu.Lock()
	d.gpu.persistence = mode
	d.session.machine.mu.Unlock()
	return d.session.leave("nvmlDeviceSetPersistenceMode", d.gpu)
}

// GetComputeMode implements nvml.Device.
func (d *device) GetComputeMode() (nvml.ComputeMode, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetComputeMode", func() nvml.ComputeMode { return d.gpu.computeMode })
}

// SetComputeMode implements nvml.Device. EXCLUSIVE_THREAD is a mode that drivers
// no longer support.
func (d *device) SetComputeMode(mode nvml.ComputeMode) nvml.Return {
	if ret := d.enter("nvmlDeviceSetComputeMode"); ret != nvml.SUCCESS {
		return ret
	}
	if mode == nvml.COMPUTEMODE_EXCLUSIVE_THREAD {
		return nvml.ERROR_NOT_SUPPORTED
	}
	if _, known := computeModes[mode]; !known {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	if d.session.unprivileged {
		return nvml.ERROR_NO_PERMISSION
	}
	if !d.setComputeMode(mode) {
		return nvml.ERROR_NOT_SUPPORTED
	}
	return d.session.leave("nvmlDeviceSetComputeMode", d.gpu)
}

// setComputeMode reports whether the GPU can have the mode: one on which MIG is
// enabled shares its instances between processes and cannot do otherwise.
func (d *device) setComputeMode(mode nvml.ComputeMode) bool {
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if d.gpu.migEnabled() && mode != nvml.COMPUTEMODE_DEFAULT {
		return false
	}
	d.gpu.computeMode = mode
	return true
}

// GetEccMode implements nvml.Device: current and pending.
func (d *device) GetEccMode() (nvml.EnableState, nvml.EnableState, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetEccMode"); ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	if !d.gpu.board.ECC {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, nvml.SUCCESS
}

// GetComputeRunningProcesses implements nvml.Device: with those on its MIG devices.
func (d *device) GetComputeRunningProcesses() ([]nvml.ProcessInfo, nvml.Return) {
	return constant(d, "nvmlDeviceGetComputeRunningProcesses_v3",
		d.session.processes(func(at place) bool { return at.gpu == d.gpu }))
}
