package wire

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Functions lists the functions that travel to the daemon with their arguments,
// in a stable order. Of every other function of the header only the name and the
// device travel, and the answer is NVML_ERROR_NOT_SUPPORTED unless something is
// injected. The shim's table is generated from this one and from the header, which
// also checks each signature against the header's prototype.
func Functions() []Function {
	return slices.Concat(
		lifecycle, lookups, identity, placementOnHost, modes, memoryInfo, utilization, mig, gpuInstances, computeInstances, nvlink, processes, events)
}

// Extensions lists functions that travel likewise and that no header declares: the
// stand-ins for tools, and the library itself, call them where the real ones do what NVML
// does not publish.
func Extensions() []Function {
	return []Function{
		fn("nvmlSimDeviceNodes", "DeviceNodes", buffer(1), u32).answering(serveDeviceNodes),
		fn("nvmlSimDeviceGetTimeslice", "GetTimeslice", handle, out32).answering(serveGetTimeslice),
		fn("nvmlSimDeviceSetTimeslice", "SetTimeslice", handle, u32).answering(serveSetTimeslice),
		fn("nvmlSimDeviceReset", "Reset", handle).answering(serveReset),
	}
}

// Lookup finds a function by its C name; nil if it does not travel.
func Lookup(name string) *Function { return functionsByName[name] }

var functionsByName = func() map[string]*Function {
	all := slices.Concat(Functions(), Extensions())
	byName := make(map[string]*Function, len(all))
	for i := range all {
		byName[all[i].Name] = &all[i]
	}
	return byName
}()

func fn(name, method string, args ...Arg) Function {
	return Function{Name: name, method: method, Args: args}
}

func (f Function) answering(serve func(*call) nvml.Return) Function {
	f.serve = serve
	return f
}

func (f Function) withSizeQuery() Function {
	f.sizeQuery = true
	return f
}

// pciInfoLegacySize is the size of nvmlPciInfo_t before its busId grew to 32
// characters: busIdLegacy, domain, bus, device, pciDeviceId, pciSubSystemId.
const pciInfoLegacySize = 36

var lifecycle = []Function{
	fn("nvmlInit", "Init").answering(serveInit),
	fn("nvmlInit_v2", "Init").answering(serveInit),
	fn("nvmlInitWithFlags", "InitWithFlags", u32).answering(serveInit),
	fn("nvmlShutdown", "Shutdown").answering(serveShutdown),
	fn("nvmlSystemGetDriverVersion", "SystemGetDriverVersion", buffer(1), u32),
	fn("nvmlSystemGetNVMLVersion", "SystemGetNVMLVersion", buffer(1), u32),
	fn("nvmlSystemGetCudaDriverVersion", "SystemGetCudaDriverVersion", out32),
	fn("nvmlSystemGetCudaDriverVersion_v2", "SystemGetCudaDriverVersion_v2", out32),
	fn("nvmlSystemGetProcessName", "SystemGetProcessName", u32, buffer(2), u32),
}

var lookups = []Function{
	fn("nvmlDeviceGetCount", "DeviceGetCount", out32),
	fn("nvmlDeviceGetCount_v2", "DeviceGetCount", out32),
	fn("nvmlDeviceGetHandleByIndex", "DeviceGetHandleByIndex", u32, outHandle),
	fn("nvmlDeviceGetHandleByIndex_v2", "DeviceGetHandleByIndex", u32, outHandle),
	fn("nvmlDeviceGetHandleBySerial", "DeviceGetHandleBySerial", text, outHandle),
	fn("nvmlDeviceGetHandleByUUID", "DeviceGetHandleByUUID", text, outHandle),
	fn("nvmlDeviceGetHandleByUUIDV", "DeviceGetHandleByUUIDV", in[nvml.UUID](), outHandle),
	fn("nvmlDeviceGetHandleByPciBusId", "DeviceGetHandleByPciBusId", text, outHandle),
	fn("nvmlDeviceGetHandleByPciBusId_v2", "DeviceGetHandleByPciBusId", text, outHandle),
}

var identity = []Function{
	fn("nvmlDeviceGetName", "GetName", handle, buffer(2), u32),
	fn("nvmlDeviceGetUUID", "GetUUID", handle, buffer(2), u32),
	fn("nvmlDeviceGetSerial", "GetSerial", handle, buffer(2), u32),
	fn("nvmlDeviceGetBoardPartNumber", "GetBoardPartNumber", handle, buffer(2), u32),
	fn("nvmlDeviceGetVbiosVersion", "GetVbiosVersion", handle, buffer(2), u32),
	fn("nvmlDeviceGetInforomVersion", "GetInforomVersion", handle, u32, buffer(3), u32),
	fn("nvmlDeviceGetInforomImageVersion", "GetInforomImageVersion", handle, buffer(2), u32),
	fn("nvmlDeviceGetMinorNumber", "GetMinorNumber", handle, out32),
	fn("nvmlDeviceGetIndex", "GetIndex", handle, out32),
	fn("nvmlDeviceGetBrand", "GetBrand", handle, out32),
	fn("nvmlDeviceGetArchitecture", "GetArchitecture", handle, out32),
	fn("nvmlDeviceGetCudaComputeCapability", "GetCudaComputeCapability", handle, out32, out32),
	fn("nvmlDeviceGetBoardId", "GetBoardId", handle, out32),
	fn("nvmlDeviceGetMultiGpuBoard", "GetMultiGpuBoard", handle, out32),
	fn("nvmlDeviceGetModuleId", "GetModuleId", handle, out32),
	fn("nvmlDeviceGetPciInfo", "GetPciInfo", handle, outPrefix[nvml.PciInfo](pciInfoLegacySize)),
	fn("nvmlDeviceGetPciInfo_v2", "GetPciInfo", handle, outPrefix[nvml.PciInfo](pciInfoLegacySize)),
	fn("nvmlDeviceGetPciInfo_v3", "GetPciInfo", handle, out[nvml.PciInfo]()),
	fn("nvmlDeviceGetPciInfoExt", "GetPciInfoExt", handle, versioned(version[nvml.PciInfoExt_v1](1))),
	fn("nvmlDeviceOnSameBoard", "OnSameBoard", handle, handle, out32),
	fn("nvmlDeviceGetDisplayMode", "GetDisplayMode", handle, out32),
	fn("nvmlDeviceGetDisplayActive", "GetDisplayActive", handle, out32),
}

var placementOnHost = []Function{
	fn("nvmlDeviceGetNumaNodeId", "GetNumaNodeId", handle, out32),
	fn("nvmlDeviceGetMemoryAffinity", "GetMemoryAffinity", handle, u32, outCounted[uint](1), u32).
		answering(serveMemoryAffinity),
	fn("nvmlDeviceGetCpuAffinity", "GetCpuAffinity", handle, u32, outCounted[uint](1)).
		answering(serveCPUAffinity),
	fn("nvmlDeviceGetCpuAffinityWithinScope", "GetCpuAffinityWithinScope", handle, u32, outCounted[uint](1), u32).
		answering(serveCPUAffinityWithinScope),
	fn("nvmlDeviceGetTopologyCommonAncestor", "GetTopologyCommonAncestor", handle, handle, out32),
	fn("nvmlDeviceGetTopologyNearestGpus", "GetTopologyNearestGpus", handle, u32, inout32, outCounted[HandleWord](2)).
		withSizeQuery(),
	fn("nvmlDeviceGetP2PStatus", "GetP2PStatus", handle, handle, u32, out32),
}

var modes = []Function{
	fn("nvmlDeviceGetVirtualizationMode", "GetVirtualizationMode", handle, out32),
	fn("nvmlDeviceGetAddressingMode", "GetAddressingMode", handle, versioned(version[nvml.DeviceAddressingMode_v1](1))),
	fn("nvmlDeviceGetPersistenceMode", "GetPersistenceMode", handle, out32),
	fn("nvmlDeviceSetPersistenceMode", "SetPersistenceMode", handle, u32),
	fn("nvmlDeviceGetComputeMode", "GetComputeMode", handle, out32),
	fn("nvmlDeviceSetComputeMode", "SetComputeMode", handle, u32),
	fn("nvmlDeviceGetEccMode", "GetEccMode", handle, out32, out32),
	fn("nvmlDeviceGetDefaultEccMode", "GetDefaultEccMode", handle, out32),
}

var memoryInfo = []Function{
	fn("nvmlDeviceGetMemoryInfo", "GetMemoryInfo", handle, out[nvml.Memory]()),
	fn("nvmlDeviceGetMemoryInfo_v2", "GetMemoryInfo_v2", handle, versioned(version[nvml.Memory_v2](2))),
	fn("nvmlDeviceGetBAR1MemoryInfo", "GetBAR1MemoryInfo", handle, out[nvml.BAR1Memory]()),
	fn("nvmlDeviceGetFieldValues", "GetFieldValues", handle, u32, memory[nvml.FieldValue](InOut, 1)).
		answering(serveFieldValues),
}

var utilization = []Function{
	fn("nvmlDeviceGetUtilizationRates", "GetUtilizationRates", handle, out[nvml.Utilization]()),
	fn("nvmlGpmQueryDeviceSupport", "GpmQueryDeviceSupport", handle, memory[nvml.GpmSupport](InOut, CountOne)).
		answering(serveGPMSupport),
	fn("nvmlGpmSampleAlloc", "GpmSampleAlloc", outHandle),
	fn("nvmlGpmSampleFree", "Free", handle).answering(serveGPMSampleFree),
	fn("nvmlGpmMigSampleGet", "GpmMigSampleGet", handle, u32, handle),
	fn("nvmlGpmMetricsGet", "", tailed[gpmMetricsGet, gpmMetric]()).answering(serveGPMMetrics),
}

var profileInfo = versioned(version[nvml.GpuInstanceProfileInfo_v2](2), version[nvml.GpuInstanceProfileInfo_v3](3))

var mig = []Function{
	fn("nvmlDeviceGetMigMode", "GetMigMode", handle, out32, out32),
	fn("nvmlDeviceSetMigMode", "SetMigMode", handle, u32, out32),
	fn("nvmlDeviceGetMaxMigDeviceCount", "GetMaxMigDeviceCount", handle, out32),
	fn("nvmlDeviceGetMigDeviceHandleByIndex", "GetMigDeviceHandleByIndex", handle, u32, outHandle),
	fn("nvmlDeviceIsMigDeviceHandle", "IsMigDeviceHandle", handle, out32),
	fn("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "GetDeviceHandleFromMigDeviceHandle", handle, outHandle),
	fn("nvmlDeviceGetGpuInstanceId", "GetGpuInstanceId", handle, out32),
	fn("nvmlDeviceGetComputeInstanceId", "GetComputeInstanceId", handle, out32),
	fn("nvmlDeviceGetAttributes", "GetAttributes", handle, out[nvml.DeviceAttributes]()),
	fn("nvmlDeviceGetAttributes_v2", "GetAttributes", handle, out[nvml.DeviceAttributes]()),
	fn("nvmlDeviceGetGpuInstanceProfileInfo", "GetGpuInstanceProfileInfo",
		handle, u32, out[nvml.GpuInstanceProfileInfo]()),
	fn("nvmlDeviceGetGpuInstanceProfileInfoV", "", handle, u32, profileInfo).answering(serveProfileInfo),
	fn("nvmlDeviceGetGpuInstanceProfileInfoByIdV", "", handle, u32, profileInfo).answering(serveProfileInfoByID),
	fn("nvmlDeviceGetGpuInstancePossiblePlacements", "GetGpuInstancePossiblePlacements",
		handle, u32, outCounted[nvml.GpuInstancePlacement](3), inout32).withSizeQuery(),
	fn("nvmlDeviceGetGpuInstancePossiblePlacements_v2", "GetGpuInstancePossiblePlacements",
		handle, u32, outCounted[nvml.GpuInstancePlacement](3), inout32).withSizeQuery(),
	fn("nvmlDeviceGetGpuInstanceRemainingCapacity", "GetGpuInstanceRemainingCapacity", handle, u32, out32),
	fn("nvmlDeviceCreateGpuInstance", "CreateGpuInstance", handle, u32, outHandle),
	fn("nvmlDeviceCreateGpuInstanceWithPlacement", "CreateGpuInstanceWithPlacement",
		handle, u32, in[nvml.GpuInstancePlacement](), outHandle),
	fn("nvmlDeviceGetGpuInstances", "GetGpuInstances",
		handle, u32, outUnbounded[HandleWord](3), out32),
	fn("nvmlDeviceGetGpuInstanceById", "GetGpuInstanceById", handle, u32, outHandle),
}

var computeProfileInfo = versioned(version[nvml.ComputeInstanceProfileInfo_v2](2), version[nvml.ComputeInstanceProfileInfo_v3](3))

var gpuInstances = []Function{
	fn("nvmlGpuInstanceDestroy", "Destroy", handle).answering(serveInstanceDestroy),
	fn("nvmlGpuInstanceGetInfo", "GetInfo", handle, out[gpuInstanceInfo]()).answering(serveGPUInstanceInfo),
	fn("nvmlGpuInstanceGetComputeInstanceProfileInfo", "GetComputeInstanceProfileInfo",
		handle, u32, u32, out[nvml.ComputeInstanceProfileInfo]()),
	fn("nvmlGpuInstanceGetComputeInstanceProfileInfoV", "", handle, u32, u32, computeProfileInfo).
		answering(serveComputeProfileInfo),
	fn("nvmlGpuInstanceGetComputeInstanceRemainingCapacity", "GetComputeInstanceRemainingCapacity", handle, u32, out32),
	fn("nvmlGpuInstanceGetComputeInstancePossiblePlacements", "GetComputeInstancePossiblePlacements",
		handle, u32, outCounted[nvml.ComputeInstancePlacement](3), inout32).withSizeQuery(),
	fn("nvmlGpuInstanceCreateComputeInstance", "CreateComputeInstance", handle, u32, outHandle),
	fn("nvmlGpuInstanceCreateComputeInstanceWithPlacement", "CreateComputeInstanceWithPlacement",
		handle, u32, in[nvml.ComputeInstancePlacement](), outHandle),
	fn("nvmlGpuInstanceGetComputeInstances", "GetComputeInstances", handle, u32, outUnbounded[HandleWord](3), out32),
	fn("nvmlGpuInstanceGetComputeInstanceById", "GetComputeInstanceById", handle, u32, outHandle),
}

var computeInstances = []Function{
	fn("nvmlComputeInstanceDestroy", "Destroy", handle).answering(serveInstanceDestroy),
	fn("nvmlComputeInstanceGetInfo", "GetInfo", handle, out[computeInstanceInfo]()).answering(serveComputeInstanceInfo),
	fn("nvmlComputeInstanceGetInfo_v2", "GetInfo", handle, out[computeInstanceInfo]()).answering(serveComputeInstanceInfo),
}

var nvlink = []Function{
	fn("nvmlDeviceGetNvLinkState", "GetNvLinkState", handle, u32, out32),
	fn("nvmlDeviceGetNvLinkVersion", "GetNvLinkVersion", handle, u32, out32),
	fn("nvmlDeviceGetNvLinkCapability", "GetNvLinkCapability", handle, u32, u32, out32),
	fn("nvmlDeviceGetNvLinkRemotePciInfo", "GetNvLinkRemotePciInfo",
		handle, u32, outPrefix[nvml.PciInfo](pciInfoLegacySize)),
	fn("nvmlDeviceGetNvLinkRemotePciInfo_v2", "GetNvLinkRemotePciInfo", handle, u32, out[nvml.PciInfo]()),
	fn("nvmlDeviceGetNvLinkRemoteDeviceType", "GetNvLinkRemoteDeviceType", handle, u32, out32),
	fn("nvmlDeviceGetGpuFabricInfo", "GetGpuFabricInfo", handle, out[nvml.GpuFabricInfo]()),
	fn("nvmlDeviceGetGpuFabricInfoV", "", handle,
		versioned(version[nvml.GpuFabricInfo_v2](2), version[nvml.GpuFabricInfo_v3](3))).answering(serveFabricInfo),
}

var processes = []Function{
	fn("nvmlDeviceGetComputeRunningProcesses_v2", "GetComputeRunningProcesses", handle, inout32, processInfosV2),
	fn("nvmlDeviceGetComputeRunningProcesses_v3", "GetComputeRunningProcesses", handle, inout32, processInfos),
	fn("nvmlDeviceGetGraphicsRunningProcesses_v2", "GetGraphicsRunningProcesses", handle, inout32, processInfosV2),
	fn("nvmlDeviceGetGraphicsRunningProcesses_v3", "GetGraphicsRunningProcesses", handle, inout32, processInfos),
	fn("nvmlDeviceGetMPSComputeRunningProcesses_v2", "GetMPSComputeRunningProcesses", handle, inout32, processInfosV2),
	fn("nvmlDeviceGetMPSComputeRunningProcesses_v3", "GetMPSComputeRunningProcesses", handle, inout32, processInfos),
}

// The two have one layout. The first version's is shorter and does not travel.
var (
	processInfosV2 = outCounted[nvml.ProcessInfo_v2](1)
	processInfos   = outCounted[nvml.ProcessInfo](1)
)

var events = []Function{
	fn("nvmlEventSetCreate", "EventSetCreate", outHandle),
	fn("nvmlEventSetFree", "Free", handle).answering(serveEventSetFree),
	fn("nvmlEventSetWait", "Wait", handle, out[eventData](), u32).answering(serveEventSetWait),
	fn("nvmlEventSetWait_v2", "Wait", handle, out[eventData](), u32).answering(serveEventSetWait),
	fn("nvmlDeviceGetSupportedEventTypes", "GetSupportedEventTypes", handle, out64),
	fn("nvmlDeviceRegisterEvents", "RegisterEvents", handle, u64, handle),
}
