package model

import (
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// migMode is whether a GPU can have MIG instances. Machine.mu guards it.
type migMode struct {
	// current and pending are NVML's constants; they differ until a reset.
	current, pending int
}

func (g *gpu) migModeText(mode int) string {
	switch {
	case g.board.MIG == nil:
		return "N/A"
	case mode == nvml.DEVICE_MIG_ENABLE:
		return "Enabled"
	}
	return "Disabled"
}

func (g *gpu) migEnabled() bool { return g.migMode.current == nvml.DEVICE_MIG_ENABLE }

// resetless reports whether the MIG mode changes at once: from Hopper on.
func (g *gpu) resetless() bool { return g.architecture >= nvml.DEVICE_ARCH_HOPPER }

// busy reports whether something would have to end before the mode can change.
func (g *gpu) busy() bool { return g.inUse() || len(g.instances.byID) > 0 }

// setMIGMode asks for a mode and returns what became of it, which is not the
// return code of nvmlDeviceSetMigMode: the call succeeds all the same. held is set if
// another process has the GPU open, which matters if the change needs a reset.
func (g *gpu) setMIGMode(mode int, held bool) (activation nvml.Return) {
	switch {
	case mode == g.migMode.current:
		g.migMode.pending = mode
		return nvml.SUCCESS
	case g.busy() && g.resetless():
		return nvml.ERROR_IN_USE
	case g.busy(), held && !g.resetless():
		g.migMode.pending = mode
		return nvml.ERROR_IN_USE
	case g.resetless():
		g.migMode.current, g.migMode.pending = mode, mode
		g.timeslice, g.work = TimesliceDefault, work{}
		if mode == nvml.DEVICE_MIG_DISABLE {
			g.retrained = time.Now().Add(g.retrain)
		}
		return nvml.SUCCESS
	default:
		g.migMode.pending = mode
		return nvml.ERROR_RESET_REQUIRED
	}
}

// SetMigMode implements nvml.Device: the activation status and the return code.
func (d *device) SetMigMode(mode int) (activation, ret nvml.Return) {
	ret = d.change("nvmlDeviceSetMigMode", func() nvml.Return {
		switch {
		case d.gpu.board.MIG == nil:
			return nvml.ERROR_NOT_SUPPORTED
		case mode != nvml.DEVICE_MIG_DISABLE && mode != nvml.DEVICE_MIG_ENABLE:
			return nvml.ERROR_INVALID_ARGUMENT
		}
		activation = d.gpu.setMIGMode(mode, d.session.machine.held(d.gpu, d.session))
		return nvml.SUCCESS
	})
	return activation, ret
}

// GetMigMode implements nvml.Device.
func (d *device) GetMigMode() (current, pending int, ret nvml.Return) {
	if ret := d.capable("nvmlDeviceGetMigMode"); ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	d.session.machine.mu.Lock()
	defer d.session.machine.mu.Unlock()
	return d.gpu.migMode.current, d.gpu.migMode.pending, nvml.SUCCESS
}

// GetMaxMigDeviceCount implements nvml.Device: 0 where MIG is not supported or
// not enabled.
func (d *device) GetMaxMigDeviceCount() (int, nvml.Return) {
	return read(d.refuser, "nvmlDeviceGetMaxMigDeviceCount", func() int {
		if !d.gpu.migEnabled() {
			return 0
		}
		return len(d.gpu.instances.devices)
	})
}
