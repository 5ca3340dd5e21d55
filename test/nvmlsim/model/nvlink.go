package model

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// port enters a function about one NVLink port. It leads nowhere until the fabric
// manager is done with the GPU.
func (d *device) port(function string, number int) (link, nvml.Return) {
	if ret := d.enter(function); ret != nvml.SUCCESS {
		return link{}, ret
	}
	switch {
	case number >= 0 && number < nvml.NVLINK_MAX_LINKS && len(d.gpu.links) == 0:
		return link{}, nvml.ERROR_NOT_SUPPORTED
	case number < 0 || number >= len(d.gpu.links):
		return link{}, nvml.ERROR_INVALID_ARGUMENT
	}
	l := d.gpu.links[number]
	if d.session.machine.fabricState(d.gpu) != FabricCompleted {
		l.remote = nil
	}
	return l, nvml.SUCCESS
}

// GetNvLinkState implements nvml.Device: a port is active when it is wired
// and the fabric manager is done.
func (d *device) GetNvLinkState(number int) (nvml.EnableState, nvml.Return) {
	l, ret := d.port("nvmlDeviceGetNvLinkState", number)
	if ret != nvml.SUCCESS || l.remote == nil {
		return nvml.FEATURE_DISABLED, ret
	}
	return nvml.FEATURE_ENABLED, ret
}

// GetNvLinkRemoteDeviceType implements nvml.Device.
func (d *device) GetNvLinkRemoteDeviceType(number int) (nvml.IntNvLinkDeviceType, nvml.Return) {
	l, ret := d.port("nvmlDeviceGetNvLinkRemoteDeviceType", number)
	if ret != nvml.SUCCESS {
		return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, ret
	}
	if l.remote == nil {
		return nvml.NVLINK_DEVICE_TYPE_UNKNOWN, nvml.ERROR_NOT_SUPPORTED
	}
	return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
}

// GetNvLinkRemotePciInfo implements nvml.Device. A switch that is no PCI device
// of the host has nothing to tell.
func (d *device) GetNvLinkRemotePciInfo(number int) (nvml.PciInfo, nvml.Return) {
	l, ret := d.port("nvmlDeviceGetNvLinkRemotePciInfo_v2", number)
	if ret != nvml.SUCCESS {
		return nvml.PciInfo{}, ret
	}
	if l.remote == nil || l.remote.PCIBusID == "" {
		return nvml.PciInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	address, err := ParsePCIAddress(l.remote.PCIBusID)
	if err != nil {
		return nvml.PciInfo{}, nvml.ERROR_UNKNOWN
	}
	return pciInfo(address, l.remote.PCIDeviceID), nvml.SUCCESS
}

// fabric enters a function about the NVLink fabric.
func (d *device) fabric(function string) (fabricInfo, nvml.Return) {
	if ret := d.enter(function); ret != nvml.SUCCESS {
		return fabricInfo{}, ret
	}
	if !d.gpu.fabricCapable() {
		return fabricInfo{}, nvml.ERROR_NOT_SUPPORTED
	}
	m := d.session.machine
	m.mu.Lock()
	defer m.mu.Unlock()
	state := m.fabricOf(d.gpu)
	info := fabricInfo{state: fabricStates[state]}
	if state == FabricCompleted {
		health := fabricHealths[d.gpu.condition.Fabric]
		info.healthMask, info.healthSummary, info.status = health.mask, health.summary, health.status
	}
	return info, nvml.SUCCESS
}

// fabricInfo is what all versions of the function tell. Zero health is not supported.
type fabricInfo struct {
	state, healthSummary uint8
	healthMask           uint32
	status               nvml.Return
}

// GetGpuFabricInfo implements nvml.Device. A fabric within one machine reports
// no cluster: its UUID and clique are zero.
func (d *device) GetGpuFabricInfo() (nvml.GpuFabricInfo, nvml.Return) {
	fabric, ret := d.fabric("nvmlDeviceGetGpuFabricInfo")
	return nvml.GpuFabricInfo{Status: uint32(fabric.status), State: fabric.state}, ret
}

// VersionedDevice is a device with the call that go-nvml offers through a handler, which only
// go-nvml can make: in process GetGpuFabricInfoV panics, and LookupSymbol does not find it.
type VersionedDevice interface {
	nvml.Device
	// GpuFabricInfo is GetGpuFabricInfoV(), whose answers begin alike in all versions.
	GpuFabricInfo(version int) (nvml.GpuFabricInfo_v3, nvml.Return)
}

var _ VersionedDevice = (*device)(nil)

// fabricInfoReleases are the first drivers of each version of the answer: nvml.h has version 2 since
// CUDA 12.4 and version 3 since CUDA 13.0.
var fabricInfoReleases = map[int]int{2: 550, 3: 580}

// GpuFabricInfo implements VersionedDevice.
func (d *device) GpuFabricInfo(version int) (nvml.GpuFabricInfo_v3, nvml.Return) {
	fabric, ret := d.fabric("nvmlDeviceGetGpuFabricInfoV")
	if ret != nvml.SUCCESS {
		return nvml.GpuFabricInfo_v3{}, ret
	}
	if since, known := fabricInfoReleases[version]; !known || d.session.machine.release() < since {
		return nvml.GpuFabricInfo_v3{}, nvml.ERROR_ARGUMENT_VERSION_MISMATCH
	}
	return nvml.GpuFabricInfo_v3{Status: uint32(fabric.status), State: fabric.state, HealthMask: fabric.healthMask, HealthSummary: fabric.healthSummary}, nvml.SUCCESS
}

// healthyFabric says of every condition in the mask that it does not hold.
const healthyFabric = nvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_RECOVERY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY |
	nvml.GPU_FABRIC_HEALTH_MASK_ROUTE_UNHEALTHY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY |
	nvml.GPU_FABRIC_HEALTH_MASK_ACCESS_TIMEOUT_RECOVERY_FALSE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY |
	nvml.GPU_FABRIC_HEALTH_MASK_INCORRECT_CONFIGURATION_NONE<<nvml.GPU_FABRIC_HEALTH_MASK_SHIFT_INCORRECT_CONFIGURATION
