package conformance

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (s suite) lifecycle(t *testing.T) {
	lib := s.client(t)
	returns(t, "first Init", nvml.SUCCESS, lib.Init())
	returns(t, "second Init", nvml.SUCCESS, lib.InitWithFlags(nvml.INIT_FLAG_NO_GPUS))
	d := device(t, lib, 0)
	returns(t, "first Shutdown", nvml.SUCCESS, lib.Shutdown())
	gives(t, "the number of GPUs after one of two shutdowns", len(s.node.GPUs))(lib.DeviceGetCount())
	uuid(t, d)
	returns(t, "second Shutdown", nvml.SUCCESS, lib.Shutdown())
	returns(t, "Init after the last Shutdown", nvml.SUCCESS, lib.Init())
	gives(t, "the number of GPUs after a new Init", len(s.node.GPUs))(lib.DeviceGetCount())
	returns(t, "last Shutdown", nvml.SUCCESS, lib.Shutdown())
}

func (s suite) uninitialised(t *testing.T) {
	lib := s.client(t)
	returns(t, "Init", nvml.SUCCESS, lib.Init())
	d := device(t, lib, 0)
	set, ret := lib.EventSetCreate()
	returns(t, "EventSetCreate", nvml.SUCCESS, ret)
	returns(t, "Shutdown", nvml.SUCCESS, lib.Shutdown())

	const want = nvml.ERROR_UNINITIALIZED
	returns(t, "Shutdown once too often", want, lib.Shutdown())
	refuses(t, "SystemGetDriverVersion", want)(lib.SystemGetDriverVersion())
	refuses(t, "DeviceGetCount", want)(lib.DeviceGetCount())
	refuses(t, "DeviceGetHandleByIndex", want)(lib.DeviceGetHandleByIndex(0))
	refuses(t, "DeviceGetHandleByIndex of no GPU", want)(lib.DeviceGetHandleByIndex(1000))
	refuses(t, "DeviceGetHandleByUUID", want)(lib.DeviceGetHandleByUUID("GPU-0"))
	refuses(t, "EventSetCreate", want)(lib.EventSetCreate())
	refuses(t, "GetUUID on an old handle", want)(d.GetUUID())
	refuses(t, "GetComputeMode on an old handle", want)(d.GetComputeMode())
	refuses(t, "Wait on an old event set", want)(set.Wait(0))
	returns(t, "RegisterEvents on old handles", want, d.RegisterEvents(nvml.EventTypeXidCriticalError, set))
}

func (s suite) system(t *testing.T) {
	lib := s.open(t)
	gives(t, "the driver version", s.node.DriverVersion)(lib.SystemGetDriverVersion())
	var major, minor int
	if _, err := fmt.Sscanf(s.node.CUDADriverVersion, "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	gives(t, "the CUDA driver version", major*1000+minor*10)(lib.SystemGetCudaDriverVersion())
	gives(t, "the CUDA driver version (v2)", major*1000+minor*10)(lib.SystemGetCudaDriverVersion_v2())

	version, ret := lib.SystemGetNVMLVersion()
	returns(t, "SystemGetNVMLVersion", nvml.SUCCESS, ret)
	if prefix := fmt.Sprintf("%d.%s", major, s.node.DriverVersion); !strings.HasPrefix(version, prefix) || !strings.Contains(version, "simulated") {
		t.Errorf("the NVML version is %q; it has to start with %q and say that it is simulated", version, prefix)
	}

	name, ret := lib.SystemGetProcessName(os.Getpid())
	returns(t, "SystemGetProcessName", nvml.SUCCESS, ret)
	if name == "" || !strings.HasPrefix(os.Args[0], name) {
		t.Errorf("the name of this process is %q, want %q", name, os.Args[0])
	}
	refuses(t, "SystemGetProcessName of no process", nvml.ERROR_NOT_FOUND)(lib.SystemGetProcessName(1 << 30))

	for _, ret := range []nvml.Return{nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_GPU_IS_LOST} {
		if lib.ErrorString(ret) == "" {
			t.Errorf("return code %d has no text", ret)
		}
	}
}

func (s suite) symbols(t *testing.T) {
	lib := s.open(t)
	for _, name := range []string{
		"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount", "nvmlDeviceGetMigMode", "nvmlDeviceGetAddressingMode",
		"nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetGpuInstancePossiblePlacements_v2", "nvmlEventSetWait_v2",
	} {
		if err := lib.Extensions().LookupSymbol(name); err != nil {
			t.Errorf("the header declares %s: %v", name, err)
		}
	}
	if err := lib.Extensions().LookupSymbol("nvmlNoSuchFunction"); err == nil {
		t.Error("a symbol that the header does not declare was found")
	}
}

// unmodelled tries functions of several kinds that no test machine models.
func (s suite) unmodelled(t *testing.T) {
	const want = nvml.ERROR_NOT_SUPPORTED
	s.each(t, func(t *testing.T, lib nvml.Interface, _ int, d nvml.Device) {
		refuses(t, "GetFanSpeed", want)(d.GetFanSpeed())
		refuses(t, "GetNumaNodeId", want)(d.GetNumaNodeId())
		refuses(t, "GetSupportedVgpus", want)(d.GetSupportedVgpus())
		refuses(t, "GetRetiredPages", want)(d.GetRetiredPages(nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR))
		refuses(t, "GetGpuInstanceId of a whole GPU", want)(d.GetGpuInstanceId())
		returns(t, "SetPowerManagementLimit", want, d.SetPowerManagementLimit(1))
		refuses(t, "UnitGetCount", want)(lib.UnitGetCount())
		refuses(t, "SystemGetDriverBranch", want)(lib.SystemGetDriverBranch())
	})
}
