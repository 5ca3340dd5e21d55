package model

import (
	"reflect"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// device is a session's handle of a GPU.
type device struct{ unsupportedDevice }

var _ VersionedDevice = (*device)(nil)

func newDevice(s *Session, g *gpu) *device {
	return &device{unsupportedDevice{refuser{session: s, gpu: g}}}
}

// unwrap finds the model's own handle in a device, which libraries such as
// go-nvlib wrap in structs that embed it.
func unwrap(wrapped nvml.Device) *device {
	if d, ok := wrapped.(*device); ok {
		return d
	}
	value := reflect.ValueOf(wrapped)
	for value.Kind() == reflect.Pointer || value.Kind() == reflect.Interface {
		value = value.Elem()
	}
	if value.Kind() != reflect.Struct {
		return nil
	}
	for i := range value.NumField() {
		field := value.Type().Field(i)
		if !field.Anonymous || !field.IsExported() {
			continue
		}
		if inner, ok := value.Field(i).Interface().(nvml.Device); ok && inner != nil {
			return unwrap(inner)
		}
	}
	return nil
}

// GetName implements nvml.Device.
func (d *device) GetName() (string, nvml.Return) {
	return constant(d, "nvmlDeviceGetName", d.gpu.board.ProductName)
}

// GetUUID implements nvml.Device.
func (d *device) GetUUID() (string, nvml.Return) {
	return constant(d, "nvmlDeviceGetUUID", d.gpu.spec.UUID)
}

// GetMinorNumber implements nvml.Device.
func (d *device) GetMinorNumber() (int, nvml.Return) {
	return constant(d, "nvmlDeviceGetMinorNumber", d.gpu.spec.Minor)
}

// GetIndex implements nvml.Device: the position among the GPUs that the session sees.
func (d *device) GetIndex() (int, nvml.Return) {
	return constant(d, "nvmlDeviceGetIndex", slices.Index(d.session.attached(), d))
}

// GetBrand implements nvml.Device.
func (d *device) GetBrand() (nvml.BrandType, nvml.Return) {
	return constant(d, "nvmlDeviceGetBrand", d.gpu.brand)
}

// GetArchitecture implements nvml.Device.
func (d *device) GetArchitecture() (nvml.DeviceArchitecture, nvml.Return) {
	return constant(d, "nvmlDeviceGetArchitecture", d.gpu.architecture)
}

// GetCudaComputeCapability implements nvml.Device.
func (d *device) GetCudaComputeCapability() (int, int, nvml.Return) {
	if ret := d.enter("nvmlDeviceGetCudaComputeCapability"); ret != nvml.SUCCESS {
		return 0, 0, ret
	}
	major, minor := d.gpu.board.CUDAComputeCapability()
	return major, minor, nvml.SUCCESS
}

// GetSerial implements nvml.Device.
func (d *device) GetSerial() (string, nvml.Return) {
	return constant(d, "nvmlDeviceGetSerial", d.gpu.serial)
}

// GetVbiosVersion implements nvml.Device.
func (d *device) GetVbiosVersion() (string, nvml.Return) {
	return constant(d, "nvmlDeviceGetVbiosVersion", vbiosVersion)
}

// GetInforomImageVersion implements nvml.Device.
func (d *device) GetInforomImageVersion() (string, nvml.Return) {
	return constant(d, "nvmlDeviceGetInforomImageVersion", inforomImageVersion)
}

// GetBoardPartNumber implements nvml.Device.
func (d *device) GetBoardPartNumber() (string, nvml.Return) {
	return constant(d, "nvmlDeviceGetBoardPartNumber", "SIM-"+d.gpu.board.Name)
}

// GetBoardId implements nvml.Device: bus and device number, as the driver makes it.
func (d *device) GetBoardId() (uint32, nvml.Return) {
	a := d.gpu.address
	return constant(d, "nvmlDeviceGetBoardId", a.Domain<<16|a.Bus<<8|a.Device)
}

// GetMultiGpuBoard implements nvml.Device: no board of the catalogue has two GPUs.
func (d *device) GetMultiGpuBoard() (int, nvml.Return) {
	return constant(d, "nvmlDeviceGetMultiGpuBoard", 0)
}

// GetModuleId implements nvml.Device.
func (d *device) GetModuleId() (int, nvml.Return) {
	return constant(d, "nvmlDeviceGetModuleId", d.gpu.spec.ModuleID)
}

// GetVirtualizationMode implements nvml.Device.
func (d *device) GetVirtualizationMode() (nvml.GpuVirtualizationMode, nvml.Return) {
	return constant(d, "nvmlDeviceGetVirtualizationMode", nvml.GPU_VIRTUALIZATION_MODE_NONE)
}

// GetAddressingMode implements nvml.Device.
func (d *device) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	mode := nvml.DeviceAddressingMode{Value: uint32(nvml.DEVICE_ADDRESSING_MODE_NONE)}
	mode.Version = nvml.STRUCT_VERSION(mode, 1)
	return constant(d, "nvmlDeviceGetAddressingMode", mode)
}

// GetDisplayMode implements nvml.Device.
func (d *device) GetDisplayMode() (nvml.EnableState, nvml.Return) {
	return constant(d, "nvmlDeviceGetDisplayMode", nvml.FEATURE_DISABLED)
}

// GetDisplayActive implements nvml.Device.
func (d *device) GetDisplayActive() (nvml.EnableState, nvml.Return) {
	return constant(d, "nvmlDeviceGetDisplayActive", nvml.FEATURE_DISABLED)
}

// IsMigDeviceHandle implements nvml.Device.
func (d *device) IsMigDeviceHandle() (bool, nvml.Return) {
	return constant(d, "nvmlDeviceIsMigDeviceHandle", false)
}

// constant answers a call whose value never changes.
func constant[T any](d *device, function string, value T) (T, nvml.Return) {
	return answer(d.refuser, function, value)
}
