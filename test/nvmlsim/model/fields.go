package model

import (
	"encoding/binary"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// GetFieldValues implements nvml.Device. Each value carries its own return code;
// fields that are not modelled answer NOT_SUPPORTED.
func (d *device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	if ret := d.enter("nvmlDeviceGetFieldValues"); ret != nvml.SUCCESS {
		return ret
	}
	for i := range values {
		d.fill(&values[i])
	}
	return nvml.SUCCESS
}

func (d *device) fill(v *nvml.FieldValue) {
	v.Timestamp = time.Now().UnixMicro()
	v.LatencyUsec = 0
	v.Value = [8]byte{}
	if kib, found := d.traffic(v.FieldId, v.ScopeId); found {
		v.NvmlReturn, v.ValueType = uint32(nvml.SUCCESS), uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
		binary.NativeEndian.PutUint64(v.Value[:], kib)
		return
	}
	value, found := d.field(v.FieldId)
	if !found {
		v.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
		return
	}
	v.NvmlReturn = uint32(nvml.SUCCESS)
	v.ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
	binary.NativeEndian.PutUint32(v.Value[:4], value)
}

// field returns the value of a field that the GPU has.
func (d *device) field(id uint32) (uint32, bool) {
	if value, found := d.session.machine.condition(d.gpu, id); found {
		return value, true
	}
	if d.gpu.board.MIG == nil {
		return 0, false
	}
	switch id {
	case nvml.FI_DEV_IS_RESETLESS_MIG_SUPPORTED:
		if d.gpu.resetless() {
			return 1, true
		}
		return 0, true
	case nvml.FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE:
		return 1, true
	}
	return 0, false
}
