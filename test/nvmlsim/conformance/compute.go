package conformance

import (
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func (s suite) computeInstances(t *testing.T) {
	const invalid, full, missing = nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_INSUFFICIENT_RESOURCES, nvml.ERROR_NOT_FOUND
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		gi := place(t, d, largest(s.board(t, gpu)), 0)
		half := whole(t, gi, 2)
		var all []nvml.ComputeInstance
		for i := range int(half.InstanceCount) {
			ci, ret := gi.CreateComputeInstance(half)
			returns(t, "CreateComputeInstance", nvml.SUCCESS, ret)
			info, ret := ci.GetInfo()
			returns(t, "GetInfo", nvml.SUCCESS, ret)
			if int(info.Id) != i || info.ProfileId != half.Id || info.Placement.Start != uint32(2*i) || info.GpuInstance != gi {
				t.Errorf("compute instance %d is %+v", i, info)
			}
			gives(t, "a compute instance by ID", ci)(gi.GetComputeInstanceById(i))
			all = append(all, ci)
		}
		refuses(t, "one more", full)(gi.CreateComputeInstance(half))
		refuses(t, "an unknown profile", nvml.ERROR_NOT_SUPPORTED)(gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 99}))
		refuses(t, "a compute instance that is not there", missing)(gi.GetComputeInstanceById(7))
		returns(t, "Destroy of a GPU instance with compute instances", nvml.ERROR_IN_USE, gi.Destroy())

		returns(t, "Destroy", nvml.SUCCESS, all[0].Destroy())
		returns(t, "a second Destroy", invalid, all[0].Destroy())
		refuses(t, "GetInfo after Destroy", invalid)(all[0].GetInfo())
		refuses(t, "a compute instance by ID after Destroy", missing)(gi.GetComputeInstanceById(0))
		again, ret := gi.CreateComputeInstance(half)
		returns(t, "CreateComputeInstance", nvml.SUCCESS, ret)
		if info, ret := again.GetInfo(); ret != nvml.SUCCESS || info.Id != 0 {
			t.Errorf("the next compute instance is %+v (%v), want ID 0 again", info, ret)
		}
		refuses(t, "GetInfo of the one before", invalid)(all[0].GetInfo())
		for _, ci := range append(all[1:], again) {
			returns(t, "Destroy", nvml.SUCCESS, ci.Destroy())
		}
		returns(t, "Destroy of an empty GPU instance", nvml.SUCCESS, gi.Destroy())
		refuses(t, "a compute instance of a GPU instance that is gone", invalid)(gi.GetComputeInstanceById(0))
	})
}
