package nvml

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/health"
)

// actions are those that NVML has numbers for (nvmlDeviceGpuRecoveryAction_t in nvml.h).
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

// Health asks a GPU how it is, in one call. What the board or driver does not know is no fault:
// drivers before R565 have no recovery action, and boards without ECC no rows that are remapped.
// The error is ErrGPULost where the GPU is.
func (l *Library) Health(uuid string) (level health.Level, err error) {
	err = l.on(uuid, func(d *device) error {
		values := []nvml.FieldValue{
			{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION},
			{FieldId: nvml.FI_DEV_REMAPPED_PENDING},
			{FieldId: nvml.FI_DEV_REMAPPED_FAILURE},
		}
		if ret := d.GetFieldValues(values); ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
			return check(ret, "read the health", d.uuid)
		}
		if action, known := number(values[0]); known {
			level.Action = actions[action]
		}
		pending, _ := number(values[1])
		failed, _ := number(values[2])
		level.RemapPending, level.RemapFailed = pending != 0, failed != 0
		for _, value := range values {
			if nvml.Return(value.NvmlReturn) == nvml.ERROR_GPU_IS_LOST {
				return check(nvml.ERROR_GPU_IS_LOST, "read the health", d.uuid)
			}
		}
		return nil
	})
	return level, err
}

// number is the value of a field, if the GPU has it. An unsigned int fills the first half of the
// union, whatever is in the second.
func number(value nvml.FieldValue) (uint64, bool) {
	if nvml.Return(value.NvmlReturn) != nvml.SUCCESS || value.Timestamp == 0 {
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
