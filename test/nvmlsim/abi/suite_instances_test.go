package abi_test

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// staticInstances checks that instances from the start are found as all others are.
func (s suite) staticInstances(t *testing.T) {
	state := s.state(t)
	s.each(t, func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device) {
		if !s.enabled(gpu) {
			return
		}
		board := s.board(t, gpu)
		found := 0
		for _, p := range board.MIG.Profiles {
			list, ret := d.GetGpuInstances(gpuProfile(t, d, p))
			returns(t, "GetGpuInstances of "+p.Name, nvml.SUCCESS, ret)
			found += len(list)
		}
		if found != len(s.node.GPUs[gpu].MIG.Instances) {
			t.Errorf("GPU %d has %d instances, want %d", gpu, found, len(s.node.GPUs[gpu].MIG.Instances))
		}
		for _, want := range state.GPUs[gpu].Instances {
			for _, ci := range want.ComputeInstances {
				mig, ret := d.GetMigDeviceHandleByIndex(ci.Index)
				returns(t, "GetMigDeviceHandleByIndex", nvml.SUCCESS, ret)
				gives(t, "the UUID of a MIG device", ci.UUID)(mig.GetUUID())
				gives(t, "the name of a MIG device", board.ProductName+" MIG "+ci.Profile)(mig.GetName())
			}
		}
	})
}

func (s suite) migModeSwitches(t *testing.T) {
	lib := initialised(t)
	for _, gpu := range s.partitionable(t) {
		d, board := device(t, lib, gpu), s.board(t, gpu)
		_, ret := d.SetMigMode(2)
		returns(t, "an unknown MIG mode", nvml.ERROR_INVALID_ARGUMENT, ret)
		for _, mode := range []int{nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_DISABLE} {
			activation, ret := d.SetMigMode(mode)
			returns(t, "SetMigMode", nvml.SUCCESS, ret)
			current, pending, ret := d.GetMigMode()
			gives(t, "the pending MIG mode", mode)(pending, ret)
			if resetless(board) {
				returns(t, "the activation", nvml.SUCCESS, activation)
				gives(t, "the MIG mode", mode)(current, ret)
			} else {
				returns(t, "the activation", nvml.ERROR_RESET_REQUIRED, activation)
				gives(t, "the MIG mode before a reset", 1-mode)(current, ret)
				act(t, s.control.Reset(gpu))
			}
			current, _, ret = d.GetMigMode()
			gives(t, "the MIG mode", mode)(current, ret)
			gives(t, "the number of MIG devices", mode*slicesOf(board))(d.GetMaxMigDeviceCount())
			activation, ret = d.SetMigMode(mode)
			returns(t, "SetMigMode to what it is", nvml.SUCCESS, ret)
			returns(t, "the activation of what is", nvml.SUCCESS, activation)
		}
	}
}

func (s suite) migModeInUse(t *testing.T) {
	lib := initialised(t)
	for _, gpu := range s.partitionable(t) {
		d, board := device(t, lib, gpu), s.board(t, gpu)
		inUse := func(mode int) {
			t.Helper()
			activation, ret := d.SetMigMode(mode)
			returns(t, "SetMigMode in use", nvml.SUCCESS, ret)
			returns(t, "the activation in use", nvml.ERROR_IN_USE, activation)
			current, pending, ret := d.GetMigMode()
			gives(t, "the MIG mode in use", 1-mode)(current, ret)
			if refused := pending != mode; refused != resetless(board) {
				t.Errorf("the pending MIG mode in use is %d on a %s", pending, board.ProductName)
			}
		}
		act(t, s.control.Occupy(gpu, nil, true))
		inUse(nvml.DEVICE_MIG_ENABLE)
		if err := s.control.Reset(gpu); err == nil {
			t.Error("a GPU in use was reset")
		}
		act(t, s.control.Occupy(gpu, nil, false))
		s.enable(t, lib, gpu)
		place(t, d, smallest(t, board), 0)
		inUse(nvml.DEVICE_MIG_DISABLE)
		if err := s.control.SetMIGMode(gpu, false); err == nil {
			t.Error("MIG was switched off under an instance")
		}
	}
}

// instanceIDs are the IDs that an instance of a part of a GPU can have.
func instanceIDs(board catalog.Board, p catalog.Profile) (from, to int) {
	parts := board.MIG.MemorySlices / p.Size
	return parts - 1, 2*parts - 1
}

func (s suite) gpuInstances(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		board := s.board(t, gpu)
		for _, p := range board.MIG.Profiles {
			seen := map[uint32]bool{}
			for _, start := range p.Starts {
				info := s.gpuInstance(t, gpu, d, p, start)
				if from, to := instanceIDs(board, p); int(info.Id) < from || int(info.Id) >= to || seen[info.Id] {
					t.Errorf("%s at %d has ID %d, of %v", p.Name, start, info.Id, seen)
				}
				seen[info.Id] = true
			}
		}
		one := gpuProfile(t, d, smallest(t, board))
		refuses(t, "an unknown profile", nvml.ERROR_INVALID_ARGUMENT)(d.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 9999}, placement(smallest(t, board), 0)))
		refuses(t, "a placement of another size", nvml.ERROR_INVALID_ARGUMENT)(d.CreateGpuInstanceWithPlacement(one, &nvml.GpuInstancePlacement{Size: 7}))
		refuses(t, "a placement off the board", nvml.ERROR_INVALID_ARGUMENT)(d.CreateGpuInstanceWithPlacement(one, placement(smallest(t, board), 40)))
		refuses(t, "the capacity for an unknown profile", nvml.ERROR_NOT_SUPPORTED)(d.GetGpuInstanceRemainingCapacity(&nvml.GpuInstanceProfileInfo{Id: 9999}))
		refuses(t, "instances of an unknown profile", nvml.ERROR_INVALID_ARGUMENT)(d.GetGpuInstances(&nvml.GpuInstanceProfileInfo{Id: 9999, InstanceCount: 1}))
		refuses(t, "an instance that is not there", nvml.ERROR_NOT_FOUND)(d.GetGpuInstanceById(1))
		refuses(t, "an instance of no possible ID", nvml.ERROR_NOT_FOUND)(d.GetGpuInstanceById(77))
	})
}

// gpuInstance takes one GPU instance through its life and returns what it was.
func (s suite) gpuInstance(t *testing.T, gpu int, d nvml.Device, p catalog.Profile, start int) nvml.GpuInstanceInfo {
	t.Helper()
	what := fmt.Sprintf("%s at %d", p.Name, start)
	profile := gpuProfile(t, d, p)
	gives(t, "the capacity before "+what, p.MaxInstances)(d.GetGpuInstanceRemainingCapacity(profile))
	gi := place(t, d, p, start)
	info, ret := gi.GetInfo()
	returns(t, "GetInfo of "+what, nvml.SUCCESS, ret)
	if info.ProfileId != uint32(p.ID) || info.Placement != *placement(p, start) || uuid(t, info.Device) != uuid(t, d) {
		t.Errorf("the info of %s is %+v", what, info)
	}
	gives(t, "the capacity beside "+what, p.MaxInstances-1)(d.GetGpuInstanceRemainingCapacity(profile))
	refuses(t, "another instance over "+what, nvml.ERROR_INSUFFICIENT_RESOURCES)(d.CreateGpuInstanceWithPlacement(profile, placement(p, start)))
	list, ret := d.GetGpuInstances(profile)
	if ret != nvml.SUCCESS || len(list) != 1 || list[0] != gi {
		t.Errorf("the instances beside %s are %v (%v), want %v", what, list, ret, gi)
	}
	gives(t, what+" by ID", gi)(d.GetGpuInstanceById(int(info.Id)))
	if got := s.state(t).GPUs[gpu].Instances; len(got) != 1 || got[0].Profile != p.Name || got[0].ID != int(info.Id) ||
		got[0].Capability != model.GPUInstanceCapability(s.node.GPUs[gpu].Minor, got[0].ID) {
		t.Errorf("the machine's state has %+v for %s", got, what)
	}
	returns(t, "Destroy of "+what, nvml.SUCCESS, gi.Destroy())

	const gone = nvml.ERROR_INVALID_ARGUMENT
	returns(t, "a second Destroy of "+what, gone, gi.Destroy())
	refuses(t, "GetInfo after Destroy of "+what, gone)(gi.GetInfo())
	refuses(t, "a compute instance after Destroy of "+what, gone)(gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{}))
	refuses(t, what+" by ID after Destroy", nvml.ERROR_NOT_FOUND)(d.GetGpuInstanceById(int(info.Id)))
	again, ret := place(t, d, p, start).GetInfo()
	if ret != nvml.SUCCESS || again.Id != info.Id {
		t.Errorf("the next %s has ID %d (%v), want %d again", what, again.Id, ret, info.Id)
	}
	refuses(t, "GetInfo of the instance before, with its ID in use again", gone)(gi.GetInfo())
	act(t, s.control.DestroyInstance(gpu, int(info.Id)))
	return info
}

func (s suite) computeInstances(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		gi := place(t, d, largest(s.board(t, gpu)), 0)
		half := whole(t, gi, 2)
		ci, ret := gi.CreateComputeInstance(half)
		returns(t, "CreateComputeInstance", nvml.SUCCESS, ret)
		info, ret := ci.GetInfo()
		returns(t, "GetInfo", nvml.SUCCESS, ret)
		if info.Id != 0 || info.ProfileId != half.Id || info.GpuInstance != gi {
			t.Errorf("the compute instance is %+v", info)
		}
		gives(t, "a compute instance by ID", ci)(gi.GetComputeInstanceById(0))
		returns(t, "Destroy of a GPU instance with a compute instance", nvml.ERROR_IN_USE, gi.Destroy())
		returns(t, "Destroy", nvml.SUCCESS, ci.Destroy())
		refuses(t, "GetInfo after Destroy", nvml.ERROR_INVALID_ARGUMENT)(ci.GetInfo())
		refuses(t, "a compute instance by ID after Destroy", nvml.ERROR_NOT_FOUND)(gi.GetComputeInstanceById(0))
		returns(t, "Destroy of an empty GPU instance", nvml.SUCCESS, gi.Destroy())
	})
}
