package abi_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (s suite) lifecycle(t *testing.T) {
	lib := library()
	returns(t, "first Init", nvml.SUCCESS, lib.Init())
	returns(t, "second Init", nvml.SUCCESS, lib.Init())
	d := device(t, lib, 0)
	returns(t, "first Shutdown", nvml.SUCCESS, lib.Shutdown())
	gives(t, "the number of GPUs after one of two shutdowns", len(s.node.GPUs))(lib.DeviceGetCount())
	uuid(t, d)
	returns(t, "second Shutdown", nvml.SUCCESS, lib.Shutdown())
	returns(t, "Init after the last Shutdown", nvml.SUCCESS, lib.Init())
	gives(t, "the number of GPUs after a new Init", len(s.node.GPUs))(lib.DeviceGetCount())
	returns(t, "last Shutdown", nvml.SUCCESS, lib.Shutdown())
}

func (suite) uninitialised(t *testing.T) {
	lib := library()
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
