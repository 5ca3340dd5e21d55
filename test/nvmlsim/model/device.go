package model

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// device is a session's handle of a GPU. In process, a function that is not modelled panics.
type device struct {
	refuser
	nvml.Device
}

func newDevice(s *Session, g *gpu) *device {
	return &device{refuser: refuser{session: s, gpu: g}}
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

// GetAddressingMode implements nvml.Device.
func (d *device) GetAddressingMode() (nvml.DeviceAddressingMode, nvml.Return) {
	mode := nvml.DeviceAddressingMode{Value: uint32(nvml.DEVICE_ADDRESSING_MODE_NONE)}
	mode.Version = nvml.STRUCT_VERSION(mode, 1)
	return constant(d, "nvmlDeviceGetAddressingMode", mode)
}

// IsMigDeviceHandle implements nvml.Device.
func (d *device) IsMigDeviceHandle() (bool, nvml.Return) {
	return constant(d, "nvmlDeviceIsMigDeviceHandle", false)
}

// constant answers a call whose value never changes.
func constant[T any](d *device, function string, value T) (T, nvml.Return) {
	return answer(d.refuser, function, value)
}
