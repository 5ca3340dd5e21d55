package wire

import (
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Functions lists the functions of the header that travel to the daemon with their arguments.
// Every other function travels with its name and device alone; its answer is
// NVML_ERROR_NOT_SUPPORTED unless a failure is injected. The shim's table is generated from this
// list and from the header, whose prototypes check each signature.
func Functions() []Function {
	return slices.Concat(
		lifecycle, lookups, identity, modes, memoryInfo, utilization, mig, gpuInstances, computeInstances, nvlink, processes, events)
}

// Extensions lists functions that no header declares. The stand-in for nvidia-smi and the library
// call them for what the real driver does by unpublished ways.
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

var lifecycle = []Function{
	fn("nvmlInit_v2", "Init").answering(serveInit),
	fn("nvmlShutdown", "Shutdown").answering(serveShutdown),
	fn("nvmlSystemGetDriverVersion", "SystemGetDriverVersion", buffer(1), u32),
	fn("nvmlSystemGetNVMLVersion", "SystemGetNVMLVersion", buffer(1), u32),
	fn("nvmlSystemGetCudaDriverVersion", "SystemGetCudaDriverVersion", out32),
	fn("nvmlSystemGetCudaDriverVersion_v2", "SystemGetCudaDriverVersion_v2", out32),
}

var lookups = []Function{
	fn("nvmlDeviceGetCount_v2", "DeviceGetCount", out32),
	fn("nvmlDeviceGetHandleByIndex_v2", "DeviceGetHandleByIndex", u32, outHandle),
	fn("nvmlDeviceGetHandleByUUID", "DeviceGetHandleByUUID", text, outHandle),
	fn("nvmlDeviceGetHandleByPciBusId_v2", "DeviceGetHandleByPciBusId", text, outHandle),
}

var identity = []Function{
	fn("nvmlDeviceGetName", "GetName", handle, buffer(2), u32),
	fn("nvmlDeviceGetUUID", "GetUUID", handle, buffer(2), u32),
	fn("nvmlDeviceGetMinorNumber", "GetMinorNumber", handle, out32),
	fn("nvmlDeviceGetIndex", "GetIndex", handle, out32),
	fn("nvmlDeviceGetBrand", "GetBrand", handle, out32),
	fn("nvmlDeviceGetArchitecture", "GetArchitecture", handle, out32),
	fn("nvmlDeviceGetCudaComputeCapability", "GetCudaComputeCapability", handle, out32, out32),
	fn("nvmlDeviceGetPciInfo_v3", "GetPciInfo", handle, out[nvml.PciInfo]()),
}

var modes = []Function{
	fn("nvmlDeviceGetAddressingMode", "GetAddressingMode", handle, versioned[nvml.DeviceAddressingMode_v1](1)),
	fn("nvmlDeviceGetPersistenceMode", "GetPersistenceMode", handle, out32),
	fn("nvmlDeviceSetPersistenceMode", "SetPersistenceMode", handle, u32),
	fn("nvmlDeviceGetComputeMode", "GetComputeMode", handle, out32),
	fn("nvmlDeviceSetComputeMode", "SetComputeMode", handle, u32),
	fn("nvmlDeviceGetEccMode", "GetEccMode", handle, out32, out32),
}

var memoryInfo = []Function{
	fn("nvmlDeviceGetMemoryInfo", "GetMemoryInfo", handle, out[nvml.Memory]()),
	fn("nvmlDeviceGetMemoryInfo_v2", "GetMemoryInfo_v2", handle, versioned[nvml.Memory_v2](2)),
	fn("nvmlDeviceGetFieldValues", "GetFieldValues", handle, u32, memory[nvml.FieldValue](InOut, 1)).
		answering(serveFieldValues),
}

var utilization = []Function{
	fn("nvmlDeviceGetUtilizationRates", "GetUtilizationRates", handle, out[nvml.Utilization]()),
	fn("nvmlDeviceGetTemperature", "GetTemperature", handle, u32, out32),
	fn("nvmlDeviceGetPowerUsage", "GetPowerUsage", handle, out32),
	fn("nvmlGpmQueryDeviceSupport", "GpmQueryDeviceSupport", handle, memory[nvml.GpmSupport](InOut, CountOne)).
		answering(serveGPMSupport),
	fn("nvmlGpmSampleAlloc", "GpmSampleAlloc", outHandle),
	fn("nvmlGpmSampleFree", "Free", handle).answering(serveLast),
	fn("nvmlGpmMigSampleGet", "GpmMigSampleGet", handle, u32, handle),
	fn("nvmlGpmMetricsGet", "", tailed[gpmMetricsGet, gpmMetric]()).answering(serveGPMMetrics),
}

var mig = []Function{
	fn("nvmlDeviceGetMigMode", "GetMigMode", handle, out32, out32),
	fn("nvmlDeviceSetMigMode", "SetMigMode", handle, u32, out32),
	fn("nvmlDeviceGetMaxMigDeviceCount", "GetMaxMigDeviceCount", handle, out32),
	fn("nvmlDeviceGetMigDeviceHandleByIndex", "GetMigDeviceHandleByIndex", handle, u32, outHandle),
	fn("nvmlDeviceIsMigDeviceHandle", "IsMigDeviceHandle", handle, out32),
	fn("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "GetDeviceHandleFromMigDeviceHandle", handle, outHandle),
	fn("nvmlDeviceGetGpuInstanceId", "GetGpuInstanceId", handle, out32),
	fn("nvmlDeviceGetComputeInstanceId", "GetComputeInstanceId", handle, out32),
	fn("nvmlDeviceGetAttributes_v2", "GetAttributes", handle, out[nvml.DeviceAttributes]()),
	fn("nvmlDeviceGetGpuInstanceProfileInfo", "GetGpuInstanceProfileInfo",
		handle, u32, out[nvml.GpuInstanceProfileInfo]()),
	fn("nvmlDeviceGetGpuInstancePossiblePlacements_v2", "GetGpuInstancePossiblePlacements",
		handle, u32, outCounted[nvml.GpuInstancePlacement](3), inout32).withSizeQuery(),
	fn("nvmlDeviceGetGpuInstanceRemainingCapacity", "GetGpuInstanceRemainingCapacity", handle, u32, out32),
	fn("nvmlDeviceCreateGpuInstanceWithPlacement", "CreateGpuInstanceWithPlacement",
		handle, u32, in[nvml.GpuInstancePlacement](), outHandle),
	fn("nvmlDeviceGetGpuInstances", "GetGpuInstances",
		handle, u32, outUnbounded[HandleWord](3), out32),
	fn("nvmlDeviceGetGpuInstanceById", "GetGpuInstanceById", handle, u32, outHandle),
}

var gpuInstances = []Function{
	fn("nvmlGpuInstanceDestroy", "Destroy", handle).answering(serveLast),
	fn("nvmlGpuInstanceGetInfo", "GetInfo", handle, out[gpuInstanceInfo]()).answering(serveGPUInstanceInfo),
	fn("nvmlGpuInstanceGetComputeInstanceProfileInfo", "GetComputeInstanceProfileInfo",
		handle, u32, u32, out[nvml.ComputeInstanceProfileInfo]()),
	fn("nvmlGpuInstanceCreateComputeInstance", "CreateComputeInstance", handle, u32, outHandle),
	fn("nvmlGpuInstanceGetComputeInstanceById", "GetComputeInstanceById", handle, u32, outHandle),
}

var computeInstances = []Function{
	fn("nvmlComputeInstanceDestroy", "Destroy", handle).answering(serveLast),
	fn("nvmlComputeInstanceGetInfo_v2", "GetInfo", handle, out[computeInstanceInfo]()).answering(serveComputeInstanceInfo),
}

var nvlink = []Function{
	fn("nvmlDeviceGetNvLinkState", "GetNvLinkState", handle, u32, out32),
	fn("nvmlDeviceGetNvLinkRemotePciInfo_v2", "GetNvLinkRemotePciInfo", handle, u32, out[nvml.PciInfo]()),
	fn("nvmlDeviceGetNvLinkRemoteDeviceType", "GetNvLinkRemoteDeviceType", handle, u32, out32),
	fn("nvmlDeviceGetGpuFabricInfo", "GetGpuFabricInfo", handle, out[nvml.GpuFabricInfo]()),
	fn("nvmlDeviceGetGpuFabricInfoV", "GetGpuFabricInfoV", handle, versioned[nvml.GpuFabricInfo_v3](3).orOlder(versioned[nvml.GpuFabricInfo_v2](2))).
		answering(serveFabricInfo),
}

var processes = []Function{
	fn("nvmlDeviceGetComputeRunningProcesses_v3", "GetComputeRunningProcesses", handle, inout32, outCounted[nvml.ProcessInfo](1)),
}

var events = []Function{
	fn("nvmlEventSetCreate", "EventSetCreate", outHandle),
	fn("nvmlEventSetFree", "Free", handle).answering(serveLast),
	fn("nvmlEventSetWait_v2", "Wait", handle, out[eventData](), u32).answering(serveEventSetWait),
	fn("nvmlDeviceGetSupportedEventTypes", "GetSupportedEventTypes", handle, out64),
	fn("nvmlDeviceRegisterEvents", "RegisterEvents", handle, u64, handle),
}
