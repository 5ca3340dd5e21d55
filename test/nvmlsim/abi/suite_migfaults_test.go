package abi_test

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (s suite) instancesInUse(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		one := smallest(t, s.board(t, gpu))
		gi := place(t, d, one, 0)
		ci := fill(t, gi, 1)
		info, ret := gi.GetInfo()
		returns(t, "GetInfo", nvml.SUCCESS, ret)
		id := int(info.Id)
		act(t, s.control.Occupy(gpu, &id, true))
		returns(t, "Destroy of a compute instance in use", nvml.ERROR_IN_USE, ci.Destroy())
		returns(t, "Destroy of a GPU instance in use", nvml.ERROR_IN_USE, gi.Destroy())
		for what, err := range map[string]error{
			"a reset":                  s.control.Reset(gpu),
			"a destruction":            s.control.DestroyInstance(gpu, id),
			"a use of what is not":     s.control.Occupy(gpu, &[]int{14}[0], true),
			"a destruction of nothing": s.control.DestroyInstance(gpu, 14),
			"a creation of no profile": noInstance(s.control.CreateInstance(gpu, "9g.1gb", nil)),
			"a creation over another":  noInstance(s.control.CreateInstance(gpu, one.Name, &one.Starts[0])),
		} {
			if err == nil {
				t.Errorf("%s succeeded", what)
			}
		}
		act(t, s.control.Occupy(gpu, &id, false))
		returns(t, "Destroy of a compute instance", nvml.SUCCESS, ci.Destroy())
		returns(t, "Destroy of a GPU instance", nvml.SUCCESS, gi.Destroy())
	})
}

func noInstance(_ model.InstanceState, err error) error { return err }

func (s suite) instancesOfLostGPU(t *testing.T) {
	s.partition(t, func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device) {
		gi := place(t, d, smallest(t, s.board(t, gpu)), 0)
		mig := migDevice(t, fill(t, gi, 1))
		id := uuid(t, mig)
		act(t, s.control.Lose(gpu))
		const lost = nvml.ERROR_GPU_IS_LOST
		refuses(t, "GetUUID of a MIG device", lost)(mig.GetUUID())
		refuses(t, "DeviceGetHandleByUUID of a MIG device", lost)(lib.DeviceGetHandleByUUID(id))
		refuses(t, "GetInfo of a GPU instance", lost)(gi.GetInfo())
		returns(t, "Destroy of a GPU instance", lost, gi.Destroy())
		act(t, s.control.Return(gpu))
		gives(t, "the UUID of a MIG device of a GPU that returned", id)(mig.GetUUID())
	})
}

// migFailures lets every function that changes MIG fail before and after its effect.
func (s suite) migFailures(t *testing.T) {
	const failed = nvml.ERROR_TIMEOUT
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		one := smallest(t, s.board(t, gpu))
		fail := func(function string, after bool) {
			t.Helper()
			act(t, s.control.Fail(model.Failure{Function: function, Return: failed, Times: 1, GPU: &gpu, After: after}))
		}
		instances := func(what string, gpuInstances, computeInstances int) {
			t.Helper()
			all := s.state(t).GPUs[gpu].Instances
			compute := 0
			for _, gi := range all {
				compute += len(gi.ComputeInstances)
			}
			if len(all) != gpuInstances || compute != computeInstances {
				t.Errorf("%s leaves %+v, want %d GPU instances and %d compute instances", what, all, gpuInstances, computeInstances)
			}
		}
		for _, after := range []bool{false, true} {
			effect := map[bool]int{true: 1}[after]
			fail("nvmlDeviceCreateGpuInstanceWithPlacement", after)
			refuses(t, "CreateGpuInstanceWithPlacement", failed)(d.CreateGpuInstanceWithPlacement(gpuProfile(t, d, one), placement(one, one.Starts[0])))
			instances("a failed creation", effect, 0)
			act(t, s.control.Reset(gpu))

			gi := place(t, d, one, 0)
			fail("nvmlGpuInstanceCreateComputeInstance", after)
			refuses(t, "CreateComputeInstance", failed)(gi.CreateComputeInstance(whole(t, gi, 1)))
			instances("a failed creation of a compute instance", 1, effect)
			act(t, s.control.Reset(gpu))

			gi = place(t, d, one, 0)
			ci := fill(t, gi, 1)
			fail("nvmlComputeInstanceDestroy", after)
			returns(t, "Destroy of a compute instance", failed, ci.Destroy())
			instances("a failed destruction of a compute instance", 1, 1-effect)
			if !after {
				returns(t, "Destroy of a compute instance", nvml.SUCCESS, ci.Destroy())
			}
			fail("nvmlGpuInstanceDestroy", after)
			returns(t, "Destroy", failed, gi.Destroy())
			instances("a failed destruction", 1-effect, 0)
			act(t, s.control.Reset(gpu))
			s.failedMode(t, gpu, d, after)
		}
	})
}

func (s suite) failedMode(t *testing.T, gpu int, d nvml.Device, after bool) {
	t.Helper()
	want := nvml.DEVICE_MIG_ENABLE
	if after {
		want = nvml.DEVICE_MIG_DISABLE
	}
	act(t, s.control.Fail(model.Failure{Function: "nvmlDeviceSetMigMode", Return: nvml.ERROR_TIMEOUT, Times: 1, After: after}))
	_, ret := d.SetMigMode(nvml.DEVICE_MIG_DISABLE)
	returns(t, "SetMigMode", nvml.ERROR_TIMEOUT, ret)
	_, pending, ret := d.GetMigMode()
	gives(t, "the pending MIG mode", want)(pending, ret)
	// A call that fails by itself does not use up the failure.
	act(t, s.control.Fail(model.Failure{Function: "nvmlDeviceSetMigMode", Return: nvml.ERROR_TIMEOUT, Times: 1, After: true}))
	_, ret = d.SetMigMode(7)
	returns(t, "an unknown MIG mode", nvml.ERROR_INVALID_ARGUMENT, ret)
	_, ret = d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	returns(t, "SetMigMode", nvml.ERROR_TIMEOUT, ret)
}
