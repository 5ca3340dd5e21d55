package model

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ResetDevice is a GPU that can be reset. NVML's header declares no function for it; nvidia-smi
// reaches the real driver by one of its own, and the simulator by nvmlSimDeviceReset.
type ResetDevice interface {
	Reset() nvml.Return
}

var _ ResetDevice = (*device)(nil)

// Reset implements ResetDevice. Only root may. The answer is IN_USE for a GPU in use, and
// INVALID_STATE for one that its NVLink peers have to be reset with.
func (d *device) Reset() nvml.Return {
	return d.change("nvmlSimDeviceReset", func() nvml.Return {
		m := d.session.machine
		switch {
		case d.session.unprivileged:
			return nvml.ERROR_NO_PERMISSION
		case !m.resetsAlone(d.gpu):
			return nvml.ERROR_INVALID_STATE
		case d.gpu.worksNow() || m.held(d.gpu, d.session) || m.file.Habits.ClientsHold && d.gpu.persistence == nvml.FEATURE_ENABLED:
			// Persistence mode is a client, too (NVIDIA/NVSentinel #1690, NVIDIA/gpu-operator #118).
			return nvml.ERROR_IN_USE
		}
		d.gpu.reset()
		return nvml.SUCCESS
	})
}

// resetsAlone reports whether the GPU can be reset without those that NVLinks join it with: before
// Ampere it cannot, and on Ampere not without the fabric manager (nvidia-smi's manual page,
// --gpu-reset). It is called with Machine.mu held.
func (m *Machine) resetsAlone(g *gpu) bool {
	return !g.switched() || g.architecture > nvml.DEVICE_ARCH_AMPERE || g.architecture == nvml.DEVICE_ARCH_AMPERE && m.fabric == FabricCompleted
}

// worksNow reports whether something runs on the GPU or on one of its instances.
func (g *gpu) worksNow() bool {
	return g.inUse() || slices.ContainsFunc(slices.Collect(maps.Values(g.instances.byID)), (*gpuInstance).inUse)
}

// reset leaves the GPU without instances, and with the MIG mode that was pending.
func (g *gpu) reset() {
	g.endInstances()
	g.migMode.current = g.migMode.pending
	g.timeslice, g.work, g.condition, g.recovering = TimesliceDefault, work{}, g.condition.afterReset(), nil
}

// ResetByUUID resets a GPU as nvidia-smi does, which is a process of its own.
func (m *Machine) ResetByUUID(_ context.Context, uuid string) error {
	session := m.NewSession()
	defer session.Close()
	if ret := session.Init(); ret != nvml.SUCCESS {
		return ret
	}
	found, ret := session.DeviceGetHandleByUUID(uuid)
	if ret != nvml.SUCCESS {
		return ret
	}
	if ret := found.(ResetDevice).Reset(); ret != nvml.SUCCESS {
		return ret
	}
	return nil
}

// Reset implements Control.
func (m *Machine) Reset(index int) error {
	return m.changeMIG(index, func(g *gpu) error {
		switch {
		case !g.reachable():
			return fmt.Errorf("GPU %d is lost and cannot be reset; return it first", index)
		case g.worksNow():
			return fmt.Errorf("GPU %d is in use by a process and cannot be reset", index)
		case m.held(g, nil):
			return fmt.Errorf("GPU %d is held by a client of NVML and cannot be reset", index)
		}
		g.reset()
		return nil
	})
}
