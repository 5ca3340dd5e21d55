package model

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Timeslice is how long a GPU lets one process compute before the next has its
// turn, in the words and numbers of nvidia-smi compute-policy.
type Timeslice uint32

// The values of nvidia-smi compute-policy --set-timeslice.
const (
	TimesliceDefault Timeslice = iota
	TimesliceShort
	TimesliceMedium
	TimesliceLong
)

func (t Timeslice) String() string {
	if names := [...]string{"Default", "Short", "Medium", "Long"}; int(t) < len(names) {
		return names[t]
	}
	return "Unknown"
}

// TimesliceDevice is a GPU whose time slice can be asked for and set. NVML's header
// declares no function for it; nvidia-smi reaches the real driver by one of its own,
// and the simulator by the C functions nvmlSimDevice{Get,Set}Timeslice.
type TimesliceDevice interface {
	GetTimeslice() (Timeslice, nvml.Return)
	SetTimeslice(Timeslice) nvml.Return
}

var _ TimesliceDevice = (*device)(nil)

// GetTimeslice implements TimesliceDevice.
func (d *device) GetTimeslice() (Timeslice, nvml.Return) {
	if ret := d.enter("nvmlSimDeviceGetTimeslice"); ret != nvml.SUCCESS {
		return 0, ret
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	if !d.gpu.slicesTime() {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	return d.gpu.timeslice, nvml.SUCCESS
}

// SetTimeslice implements TimesliceDevice. Only root may.
func (d *device) SetTimeslice(t Timeslice) nvml.Return {
	if ret := d.enter("nvmlSimDeviceSetTimeslice"); ret != nvml.SUCCESS {
		return ret
	}
	if ret := d.setTimeslice(t); ret != nvml.SUCCESS {
		return ret
	}
	return d.session.leave("nvmlSimDeviceSetTimeslice", d.gpu)
}

func (d *device) setTimeslice(t Timeslice) nvml.Return {
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	switch {
	case t > TimesliceLong:
		return nvml.ERROR_INVALID_ARGUMENT
	case !d.gpu.slicesTime():
		return nvml.ERROR_NOT_SUPPORTED
	case d.session.unprivileged:
		return nvml.ERROR_NO_PERMISSION
	}
	d.gpu.timeslice = t
	return nvml.SUCCESS
}

// slicesTime reports whether the GPU's time slice can be chosen. That takes preemption
// of single instructions, which all boards have from Volta on, and the whole GPU.
func (g *gpu) slicesTime() bool { return g.isVoltaOrLater() && !g.migEnabled() }

func (g *gpu) isVoltaOrLater() bool {
	const volta = 7
	major, _ := g.board.CUDAComputeCapability()
	return major >= volta
}

// timesliceText is called with Machine.mu held.
func (g *gpu) timesliceText() string {
	if !g.slicesTime() {
		return "N/A"
	}
	return g.timeslice.String()
}
