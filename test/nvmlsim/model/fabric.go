package model

import (
	"fmt"
	"time"
)

// Fabric is how far the fabric manager, a service of its own, has come on a machine with
// NVSwitches: it may start long after the driver. The zero value is completed.
type Fabric string

// The states that nvmlGpuFabricState_t has; each GPU goes through them
// (NVIDIA/NVSentinel #883). Until the last, links into NVSwitches are inactive and CUDA
// fails with CUDA_ERROR_SYSTEM_NOT_READY (NVIDIA's Fabric Manager User Guide). Guessed:
// that an inactive link's remote end is NOT_SUPPORTED, and that health is unknown.
const (
	FabricNotStarted Fabric = "notStarted"
	FabricInProgress Fabric = "inProgress"
	FabricCompleted  Fabric = "completed"
)

// fabricStates are NVML's numbers (NVML_GPU_FABRIC_STATE_* in nvml.h).
var fabricStates = map[Fabric]uint8{FabricNotStarted: 1, FabricInProgress: 2, FabricCompleted: 3}

func (f Fabric) validate() error {
	if _, known := fabricStates[f]; known {
		return nil
	}
	return fmt.Errorf("fabric %q; it is %s, %s or %s", f, FabricNotStarted, FabricInProgress, FabricCompleted)
}

// SetFabric implements Control.
func (m *Machine) SetFabric(state Fabric) error {
	if err := state.validate(); err != nil {
		return err
	}
	if len(m.file.NVSwitches) == 0 {
		return fmt.Errorf("machine %q has no NVSwitch and thus no fabric manager", m.file.Name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fabric = state
	return nil
}

// fabricState is how far the fabric manager has come with a GPU.
func (m *Machine) fabricState(g *gpu) Fabric {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fabricOf(g)
}

// fabricOf is called with Machine.mu held.
func (m *Machine) fabricOf(g *gpu) Fabric {
	if m.fabric == FabricCompleted && time.Now().Before(g.retrained) {
		return FabricInProgress
	}
	return m.fabric
}
