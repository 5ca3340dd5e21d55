package abi_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (s suite) lostGPU(t *testing.T) {
	lib := initialised(t)
	d := device(t, lib, 0)
	id := uuid(t, d)
	act(t, s.control.Lose(0))

	const want = nvml.ERROR_GPU_IS_LOST
	gives(t, "the number of GPUs with one lost", len(s.node.GPUs))(lib.DeviceGetCount())
	refuses(t, "DeviceGetHandleByIndex", want)(lib.DeviceGetHandleByIndex(0))
	refuses(t, "DeviceGetHandleByUUID", want)(lib.DeviceGetHandleByUUID(id))
	refuses(t, "DeviceGetHandleByPciBusId", want)(lib.DeviceGetHandleByPciBusId(s.node.GPUs[0].PCIBusID))
	refuses(t, "GetUUID", want)(d.GetUUID())
	refuses(t, "GetMemoryInfo", want)(d.GetMemoryInfo())
	refuses(t, "GetComputeMode", want)(d.GetComputeMode())
	refuses(t, "GetFanSpeed", want)(d.GetFanSpeed())
	returns(t, "SetComputeMode", want, d.SetComputeMode(nvml.COMPUTEMODE_PROHIBITED))
	for i := 1; i < len(s.node.GPUs); i++ {
		uuid(t, device(t, lib, i))
	}
	if state := s.state(t); !state.GPUs[0].Lost {
		t.Error("the machine's state does not say that the GPU is lost")
	}

	act(t, s.control.Return(0))
	gives(t, "the UUID of a returned GPU", id)(d.GetUUID())
	gives(t, "the compute mode of a returned GPU", nvml.COMPUTEMODE_DEFAULT)(d.GetComputeMode())
}

// attachments: the enumeration follows, and handles of GPUs that stay are good.
func (s suite) attachments(t *testing.T) {
	lib := initialised(t)
	idle := slices.IndexFunc(s.node.GPUs, func(g model.GPU) bool { return g.MIG == nil })
	if idle < 0 {
		return
	}
	all := len(s.node.GPUs)
	d, last := device(t, lib, idle), device(t, lib, all-1)
	id, lastID := uuid(t, d), uuid(t, last)
	act(t, s.control.Detach(idle))
	gives(t, "the number of GPUs with one detached", all-1)(lib.DeviceGetCount())
	refuses(t, "DeviceGetHandleByUUID of a detached GPU", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByUUID(id))
	refuses(t, "DeviceGetHandleByPciBusId of a detached GPU", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByPciBusId(s.node.GPUs[idle].PCIBusID))
	refuses(t, "the index past the GPUs that are there", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByIndex(all - 1))
	refuses(t, "GetUUID of a detached GPU", nvml.ERROR_GPU_IS_LOST)(d.GetUUID())
	if idle < all-1 {
		gives(t, "the UUID of another", lastID)(last.GetUUID())
		gives(t, "the index of one behind it", all-2)(last.GetIndex())
	}
	if state := s.state(t); !state.GPUs[idle].Absent || state.GPUs[idle].Lost {
		t.Errorf("the machine's state says %+v of a detached GPU", state.GPUs[idle])
	}
	for what, err := range map[string]error{"lost": s.control.Lose(idle), "detached": s.control.Detach(idle), "reset": s.control.Reset(idle)} {
		if err == nil {
			t.Errorf("an absent GPU was %s", what)
		}
	}
	act(t, s.control.Attach(idle))
	gives(t, "the number of GPUs again", all)(lib.DeviceGetCount())
	gives(t, "the UUID of an attached GPU", id)(device(t, lib, idle).GetUUID())
	if err := s.control.Attach(idle); err == nil {
		t.Error("a GPU was attached twice")
	}
}

func (s suite) failures(t *testing.T) {
	lib := initialised(t)
	d := device(t, lib, 0)
	const failed = nvml.ERROR_UNKNOWN
	act(t, s.control.Fail(model.Failure{Function: "nvmlDeviceGetMemoryInfo", Return: failed, Times: 2}))
	refuses(t, "the first failing call", failed)(d.GetMemoryInfo())
	refuses(t, "the second failing call", failed)(d.GetMemoryInfo())
	_, ret := d.GetMemoryInfo()
	returns(t, "the third call", nvml.SUCCESS, ret)

	last := len(s.node.GPUs) - 1
	act(t, s.control.Fail(model.Failure{Function: "nvmlDeviceGetName", Return: nvml.ERROR_TIMEOUT, GPU: &last}))
	for i := range s.node.GPUs {
		want := nvml.SUCCESS
		if i == last {
			want = nvml.ERROR_TIMEOUT
		}
		_, ret := device(t, lib, i).GetName()
		returns(t, fmt.Sprintf("the name of GPU %d", i), want, ret)
	}
	if state := s.state(t); len(state.Failures) != 1 {
		t.Errorf("the machine's state lists failures %v, want one", state.Failures)
	}
	act(t, s.control.Clear())
	gives(t, "the name after the failure was cleared", s.board(t, last).ProductName)(device(t, lib, last).GetName())

	act(t, s.control.Fail(model.Failure{Function: "nvmlInit", Return: nvml.ERROR_DRIVER_NOT_LOADED, Times: 1}))
	fresh := library()
	returns(t, "Init without a driver", nvml.ERROR_DRIVER_NOT_LOADED, fresh.Init())
	returns(t, "Init once the driver is there", nvml.SUCCESS, fresh.Init())
	returns(t, "Shutdown", nvml.SUCCESS, fresh.Shutdown())
}
