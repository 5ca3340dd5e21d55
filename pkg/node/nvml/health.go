package nvml

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/health"
)

// actions are the recovery actions by NVML's number (nvmlDeviceGpuRecoveryAction_t in nvml.h).
var actions = map[uint64]health.Action{
	uint64(nvml.GPU_RECOVERY_ACTION_NONE):                health.ActionNone,
	uint64(nvml.GPU_RECOVERY_ACTION_GPU_RESET):           health.ActionReset,
	uint64(nvml.GPU_RECOVERY_ACTION_NODE_REBOOT):         health.ActionReboot,
	uint64(nvml.GPU_RECOVERY_ACTION_DRAIN_P2P):           health.ActionDrainP2P,
	uint64(nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET):     health.ActionDrainAndReset,
	uint64(nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN): health.ActionRecoverIMEX,
	uint64(nvml.GPU_RECOVERY_ACTION_BUS_RESET):           health.ActionBusReset,
	uint64(nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT):       health.ActionSystemReboot,
}

// FieldAnswer is the driver's answer for one field of a GPU's health.
type FieldAnswer struct {
	// Field is its name, such as "recovery action".
	Field string
	// Err is nil for a value that Health uses, and ErrNotSupported if the board or driver lacks the field.
	Err error
}

// HealthFields reports which fields of a GPU's health the driver answers. Health treats a field
// without an answer as no fault, so nothing else shows it.
func (l *Library) HealthFields(uuid string) ([]FieldAnswer, error) {
	return ask(l, "read the health", uuid, func(d *device) ([]FieldAnswer, error) {
		values, err := d.healthValues()
		if err != nil {
			return nil, err
		}
		answers := []FieldAnswer{{Field: "recovery action"}, {Field: "pending row remaps"}, {Field: "failed row remaps"}}
		for i, value := range values {
			answers[i].Err = judgeField(value, answers[i].Field, d.uuid)
		}
		return answers, nil
	})
}

func judgeField(value nvml.FieldValue, name, uuid string) error {
	if ret := nvml.Return(value.NvmlReturn); ret != nvml.SUCCESS {
		return check(ret, "read the "+name, uuid)
	}
	got, known := number(value)
	if !known {
		return fmt.Errorf("read the %s of %s: NVML answered with a value of the unknown type %d", name, uuid, value.ValueType)
	}
	if _, known := actions[got]; !known && value.FieldId == nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
		return fmt.Errorf("read the %s of %s: NVML answered with the unknown action %d", name, uuid, got)
	}
	return nil
}

// healthValues reads the recovery action, and whether row remappings are pending or have failed.
func (d *device) healthValues() ([]nvml.FieldValue, error) {
	values := fields(nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE)
	if ret := d.GetFieldValues(values); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return nil, check(ret, "read the health", d.uuid)
	}
	return values, nil
}

// Health reads a GPU's health in one call, and a second one on boards that may be in an NVLink fabric.
// What the board or driver does not support is no fault: drivers before R565 have no recovery action,
// and boards without ECC no row remappings. It returns ErrGPULost or ErrSilent if the GPU is lost or
// does not answer.
func (l *Library) Health(uuid string) (health.Level, error) {
	return ask(l, "read the health", uuid, func(d *device) (level health.Level, err error) {
		values, err := d.healthValues()
		if err != nil {
			return level, err
		}
		if action, known := number(values[0]); known {
			level.Action, level.Release = actions[action], d.session.driverRelease()
		}
		pending, _ := number(values[1])
		failed, _ := number(values[2])
		level.RemapPending, level.RemapFailed = pending != 0, failed != 0
		for _, value := range values {
			if nvml.Return(value.NvmlReturn) == nvml.ERROR_GPU_IS_LOST {
				return level, check(nvml.ERROR_GPU_IS_LOST, "read the health", d.uuid)
			}
		}
		level.Fabric, err = d.fabricHealth()
		return level, err
	})
}

// fabricHealthSymbol is missing in drivers before R550 (nvml.h of CUDA 12.4).
const fabricHealthSymbol = "nvmlDeviceGetGpuFabricInfoV"

var fabricSummaries = map[uint8]health.FabricSummary{
	nvml.GPU_FABRIC_HEALTH_SUMMARY_HEALTHY:          health.FabricHealthy,
	nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY:        health.FabricUnhealthy,
	nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY: health.FabricLimited,
}

// fabricHealth reads the health of the links into NVSwitches, which is valid when the fabric manager
// has finished. Until then the GPU has the taint for that.
func (d *device) fabricHealth() (health.FabricHealth, error) {
	if d.fabricless.Load() {
		return health.FabricHealth{}, nil
	}
	info, ret := d.fabricInfo()
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return health.FabricHealth{}, check(ret, "read the health of the NVLink fabric", d.uuid)
	case nvml.ERROR_NOT_SUPPORTED:
		d.fabricless.Store(true)
	}
	if ret != nvml.SUCCESS || info.State != nvml.GPU_FABRIC_STATE_COMPLETED {
		return health.FabricHealth{}, nil
	}
	// The state is also complete when the GPU was refused: "status must be checked only if state
	// returned as complete" (nvml.h, nvmlGpuFabricInfo_v3_t).
	if status := nvml.Return(info.Status); status != nvml.SUCCESS {
		return health.FabricHealth{Summary: health.FabricUnhealthy, Reasons: "the GPU has not joined it: " + status.Error()}, nil
	}
	return health.FabricHealth{Summary: fabricSummaries[info.HealthSummary], Reasons: fabricReasons(info.HealthMask)}, nil
}

// fabricInfo reads version 3 of the answer, which drivers have since R580 (nvml.h of CUDA 13.0), else
// the first: that has the status, but no summary.
func (d *device) fabricInfo() (info nvml.GpuFabricInfo_v3, ret nvml.Return) {
	has := func(symbol string) bool { return d.session.api.Extensions().LookupSymbol(symbol) == nil }
	if has(fabricHealthSymbol) {
		info, ret = d.GetGpuFabricInfoV().V3()
		if ret != nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			return info, ret
		}
	}
	if !has(fabricSymbol) {
		return info, nvml.ERROR_NOT_SUPPORTED
	}
	first, ret := d.GetGpuFabricInfo()
	return nvml.GpuFabricInfo_v3{State: first.State, Status: first.Status}, ret
}

// fabricFields are the fields of the mask NVML_GPU_FABRIC_HEALTH_MASK_* in nvml.h that say why a
// fabric is unhealthy, with their values.
var fabricFields = []struct {
	shift, width uint32
	words        map[uint32]string
}{
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_DEGRADED_BW, map[uint32]string{
		nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE: "degraded bandwidth",
	}},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_RECOVERY, map[uint32]string{
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_TRUE: "route recovery in progress",
	}},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ROUTE_UNHEALTHY, map[uint32]string{
		nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_TRUE: "unhealthy route",
	}},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_ACCESS_TIMEOUT_RECOVERY, map[uint32]string{
		nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_TRUE: "recovery from an access timeout in progress",
	}},
	{nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION, nvml.GPU_FABRIC_HEALTH_MASK_WIDTH_INCORRECT_CONFIGURATION, map[uint32]string{
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INCORRECT_SYSGUID:    "incorrect system GUID",
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INCORRECT_CHASSIS_SN: "incorrect chassis serial number",
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NO_PARTITION:         "no partition",
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INSUFFICIENT_NVLINKS: "insufficient NVLinks",
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INCOMPATIBLE_GPU_FW:  "incompatible GPU firmware",
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_INVALID_LOCATION:     "invalid location",
		nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_GPU_STATE_INVALID:    "invalid state of the GPU",
	}},
}

func fabricReasons(mask uint32) string {
	var reasons []string
	for _, field := range fabricFields {
		if words, known := field.words[mask>>field.shift&field.width]; known {
			reasons = append(reasons, words)
		}
	}
	return strings.Join(reasons, ", ")
}

// fields are values to read. One that the driver does not fill stays unsupported.
func fields(ids ...uint32) (values []nvml.FieldValue) {
	for _, id := range ids {
		values = append(values, nvml.FieldValue{FieldId: id, NvmlReturn: uint32(nvml.ERROR_NOT_SUPPORTED)})
	}
	return values
}

// number returns the value of a field, if the GPU has it. That depends on its return value only:
// nvml.h lets a driver leave the timestamp of an unsampled field at 0. An unsigned int fills the first
// half of the union, whatever the second half contains.
func number(value nvml.FieldValue) (uint64, bool) {
	if nvml.Return(value.NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	switch nvml.ValueType(value.ValueType) {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		return uint64(binary.NativeEndian.Uint32(value.Value[:4])), true
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return binary.NativeEndian.Uint64(value.Value[:]), true
	}
	return 0, false
}
