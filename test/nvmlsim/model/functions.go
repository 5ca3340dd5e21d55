package model

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Functions lists the modelled functions by their C names: those that Mica, go-nvlib, nvcdi and
// the stand-in for nvidia-smi call. The last three are the simulator's own.
var Functions = []string{
	"nvmlInit_v2", "nvmlShutdown",
	"nvmlSystemGetDriverVersion", "nvmlSystemGetNVMLVersion", "nvmlSystemGetCudaDriverVersion", "nvmlSystemGetCudaDriverVersion_v2",
	"nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2",
	"nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetIndex", "nvmlDeviceGetBrand",
	"nvmlDeviceGetArchitecture", "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetPciInfo_v3",
	"nvmlDeviceGetAddressingMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceSetPersistenceMode",
	"nvmlDeviceGetComputeMode", "nvmlDeviceSetComputeMode", "nvmlDeviceGetEccMode",
	"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetFieldValues", "nvmlDeviceGetUtilizationRates",
	"nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage",
	"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet",
	"nvmlDeviceGetMigMode", "nvmlDeviceSetMigMode", "nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex",
	"nvmlDeviceIsMigDeviceHandle", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2",
	"nvmlDeviceGetGpuInstanceProfileInfo", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlDeviceGetGpuInstanceRemainingCapacity",
	"nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetGpuInstanceById",
	"nvmlGpuInstanceDestroy", "nvmlGpuInstanceGetInfo", "nvmlGpuInstanceGetComputeInstanceProfileInfo",
	"nvmlGpuInstanceCreateComputeInstance", "nvmlGpuInstanceGetComputeInstanceById",
	"nvmlComputeInstanceDestroy", "nvmlComputeInstanceGetInfo_v2",
	"nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType",
	"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuFabricInfoV",
	"nvmlDeviceGetComputeRunningProcesses_v3",
	"nvmlEventSetCreate", "nvmlEventSetFree", "nvmlEventSetWait_v2", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents",
	"nvmlSimDeviceGetTimeslice", "nvmlSimDeviceSetTimeslice", "nvmlSimDeviceReset",
}

// ofMIGDevices are the functions of a device that MIG devices have; GPUs lack the last four.
var ofMIGDevices = []string{
	"nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetIndex", "nvmlDeviceIsMigDeviceHandle",
	"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeMode", "nvmlDeviceGetUtilizationRates",
	"nvmlDeviceGetComputeRunningProcesses_v3",
	"nvmlDeviceGetDeviceHandleFromMigDeviceHandle", "nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2",
}

// Answers reports whether a modelled function is modelled for the device, which may be a MIG device.
func Answers(device nvml.Device, function string) bool {
	at := slices.Index(ofMIGDevices, function)
	if _, isMIG := device.(migDevice); isMIG {
		return at >= 0
	}
	return at < len(ofMIGDevices)-4
}

// known checks that a function is modelled. Its name may lack the version.
func known(function string) error {
	for _, modelled := range Functions {
		if slices.Contains(names(modelled), function) {
			return nil
		}
	}
	return fmt.Errorf("the simulator models no function %q; use the C name, for example nvmlDeviceGetUUID", function)
}

// Extensions implements nvml.Interface.
func (s *Session) Extensions() nvml.ExtendedInterface { return symbols{} }

// symbols answers for the symbol table of the library.
type symbols struct{}

// LookupSymbol finds the modelled functions, except one that cannot be called in process.
func (symbols) LookupSymbol(name string) error {
	if !slices.Contains(Functions, name) || name == "nvmlDeviceGetGpuFabricInfoV" {
		return fmt.Errorf("symbol %s cannot be called on the simulator in process", name)
	}
	return nil
}
