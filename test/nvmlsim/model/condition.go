package model

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Condition is what a GPU says of its own health. The zero value is that of a healthy one.
type Condition struct {
	// RecoveryAction is what has to be done, by its name below.
	RecoveryAction RecoveryAction `json:"recoveryAction,omitempty"`
	// RemapPending and RemapFailed tell of rows of memory that are to be remapped, or cannot be.
	RemapPending bool `json:"remapPending,omitempty"`
	RemapFailed  bool `json:"remapFailed,omitempty"`
	// Fabric is the health of the GPU's links into NVSwitches, where it has some.
	Fabric FabricHealth `json:"fabric,omitempty"`
}

// FabricHealth is what the summary of NVML_GPU_FABRIC_HEALTH_SUMMARY_* says (nvml.h). The zero
// value is healthy.
type FabricHealth string

// The states of the summary, one of a driver that has no summary, and that of a GPU that the fabric manager
// has refused.
const (
	FabricUnhealthy       FabricHealth = "unhealthy"
	FabricLimitedCapacity FabricHealth = "limited-capacity"
	FabricHealthUnknown   FabricHealth = "unknown"
	FabricNotJoined       FabricHealth = "not-joined"
)

// fabricHealths are the summary and the mask of each. Which conditions of the mask come with
// which summary is a guess.
var fabricHealths = map[FabricHealth]struct {
	summary uint8
	mask    uint32
	status  nvml.Return
}{
	"": {summary: nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY, mask: healthyFabric},
	FabricUnhealthy: {summary: nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY, mask: healthyFabric&^
		(nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY|
			nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION) |
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY |
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INSUFFICIENT_NVLINKS<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION},
	FabricLimitedCapacity: {summary: nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY, mask: healthyFabric&^
		(nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW) |
		nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW},
	FabricHealthUnknown: {},
	FabricNotJoined:     {status: nvml.ERROR_INSUFFICIENT_RESOURCES},
}

// RecoveryAction is a name of nvmlDeviceGpuRecoveryAction_t in nvml.h, in lower case.
type RecoveryAction string

// recoveryActions are in the order of NVML's numbers. The zero value is none.
var recoveryActions = []RecoveryAction{"none", "gpu-reset", "node-reboot", "drain-p2p", "drain-and-reset", "recover-imex-domain", "bus-reset", "system-reboot"}

func (a RecoveryAction) number() uint32 { return uint32(max(slices.Index(recoveryActions, a), 0)) }

// afterReset is what a reset of the GPU leaves: worn memory for which there is no row, and what
// takes a reboot.
func (c Condition) afterReset() Condition {
	left := Condition{RemapFailed: c.RemapFailed}
	if c.RecoveryAction == "node-reboot" || c.RecoveryAction == "system-reboot" {
		left.RecoveryAction = c.RecoveryAction
	}
	return left
}

// SetCondition implements Control. Actions that XIDs have yet to cause do not come. A driver that knows recovery actions reports that one changes
// by an event, and by XID 154 in the kernel's log, which the simulator does not have.
func (m *Machine) SetCondition(gpu int, condition Condition) error {
	g, err := m.gpu(gpu)
	if err != nil {
		return err
	}
	if condition.RecoveryAction != "" && !slices.Contains(recoveryActions, condition.RecoveryAction) {
		return fmt.Errorf("recovery action %q is unknown: it is one of %q", condition.RecoveryAction, recoveryActions)
	}
	if _, known := fabricHealths[condition.Fabric]; !known {
		return fmt.Errorf("fabric health %q is unknown: it is %s, %s, %s, %s or empty", condition.Fabric, FabricUnhealthy, FabricLimitedCapacity, FabricHealthUnknown, FabricNotJoined)
	}
	m.mu.Lock()
	changed := g.condition.RecoveryAction.number() != condition.RecoveryAction.number()
	g.condition, g.recovering = condition, nil
	m.mu.Unlock()
	if !changed || !m.hasRecoveryAction() {
		return nil
	}
	return m.Inject(recoveryActionChanged(gpu))
}

// condition is the value of a field about a GPU's health.
func (m *Machine) condition(g *gpu, field uint32) (value uint32, found bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	remaps := g.board.ECC && g.architecture >= nvml.DEVICE_ARCH_AMPERE // older boards retire pages
	truth := map[bool]uint32{true: 1}
	switch field {
	case nvml.FI_DEV_GET_GPU_RECOVERY_ACTION:
		return g.condition.RecoveryAction.number(), m.hasRecoveryAction()
	case nvml.FI_DEV_REMAPPED_PENDING:
		return truth[g.condition.RemapPending], remaps
	case nvml.FI_DEV_REMAPPED_FAILURE:
		return truth[g.condition.RemapFailed], remaps
	}
	return 0, false
}
