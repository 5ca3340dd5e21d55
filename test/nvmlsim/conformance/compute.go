package conformance

import (
	"fmt"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (s suite) computeInstances(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		p := largest(s.board(t, gpu))
		gi := place(t, d, p, 0)
		half := whole(t, gi, 2)
		placements, ret := gi.GetComputeInstancePossiblePlacements(half)
		returns(t, "GetComputeInstancePossiblePlacements", nvml.SUCCESS, ret)
		gives(t, "the capacity for compute instances", len(placements))(gi.GetComputeInstanceRemainingCapacity(half))
		var all []nvml.ComputeInstance
		for i := range placements {
			ci, ret := gi.CreateComputeInstanceWithPlacement(half, &placements[i])
			returns(t, "CreateComputeInstanceWithPlacement", nvml.SUCCESS, ret)
			info, ret := ci.GetInfo()
			returns(t, "GetInfo", nvml.SUCCESS, ret)
			if int(info.Id) != i || info.ProfileId != half.Id || info.Placement != placements[i] || info.GpuInstance != gi {
				t.Errorf("compute instance %d is %+v", i, info)
			}
			gives(t, "a compute instance by ID", ci)(gi.GetComputeInstanceById(i))
			all = append(all, ci)
		}
		const full = nvml.ERROR_INSUFFICIENT_RESOURCES
		refuses(t, "one more", full)(gi.CreateComputeInstance(half))
		refuses(t, "one over another", full)(gi.CreateComputeInstanceWithPlacement(half, &placements[0]))
		gives(t, "the compute instances", all)(gi.GetComputeInstances(half))
		gives(t, "the capacity that is left", 0)(gi.GetComputeInstanceRemainingCapacity(half))
		returns(t, "Destroy of a GPU instance with compute instances", nvml.ERROR_IN_USE, gi.Destroy())
		s.destroyCompute(t, gi, half, all)
		returns(t, "Destroy of an empty GPU instance", nvml.SUCCESS, gi.Destroy())
		refuses(t, "compute instances of a GPU instance that is gone", nvml.ERROR_INVALID_ARGUMENT)(gi.GetComputeInstances(half))
	})
}

// destroyCompute destroys compute instances and checks what becomes of them.
func (s suite) destroyCompute(t *testing.T, gi nvml.GpuInstance, half *nvml.ComputeInstanceProfileInfo, all []nvml.ComputeInstance) {
	t.Helper()
	const invalid = nvml.ERROR_INVALID_ARGUMENT
	refuses(t, "no profile", invalid)(gi.CreateComputeInstance(nil))
	refuses(t, "no placement", invalid)(gi.CreateComputeInstanceWithPlacement(half, nil))
	refuses(t, "a placement off the instance", invalid)(gi.CreateComputeInstanceWithPlacement(half, &nvml.ComputeInstancePlacement{Start: 9, Size: 2}))
	refuses(t, "a placement of another size", invalid)(gi.CreateComputeInstanceWithPlacement(half, &nvml.ComputeInstancePlacement{Size: 1}))
	refuses(t, "an unknown profile", nvml.ERROR_NOT_SUPPORTED)(gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 99}))
	refuses(t, "a compute instance that is not there", nvml.ERROR_NOT_FOUND)(gi.GetComputeInstanceById(7))

	returns(t, "Destroy", nvml.SUCCESS, all[0].Destroy())
	returns(t, "a second Destroy", invalid, all[0].Destroy())
	refuses(t, "GetInfo after Destroy", invalid)(all[0].GetInfo())
	refuses(t, "a compute instance by ID after Destroy", nvml.ERROR_NOT_FOUND)(gi.GetComputeInstanceById(0))
	again, ret := gi.CreateComputeInstance(half)
	returns(t, "CreateComputeInstance", nvml.SUCCESS, ret)
	if info, ret := again.GetInfo(); ret != nvml.SUCCESS || info.Id != 0 {
		t.Errorf("the next compute instance is %+v (%v), want ID 0 again", info, ret)
	}
	refuses(t, "GetInfo of the one before", invalid)(all[0].GetInfo())
	for _, ci := range append(all[1:], again) {
		returns(t, "Destroy", nvml.SUCCESS, ci.Destroy())
	}
}

// computeCounts is how many compute instances of each number of slices fit a GPU
// instance, by the number of its slices.
var computeCounts = map[int]map[int]int{
	1: {1: 1},
	2: {1: 2, 2: 1},
	3: {1: 3, 2: 1, 3: 1},
	4: {1: 4, 2: 2, 4: 1},
	7: {1: 7, 2: 3, 3: 2, 4: 1, 7: 1},
}

func (s suite) computeProfiles(t *testing.T) {
	s.partition(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		for _, p := range s.board(t, gpu).MIG.Profiles {
			gi := place(t, d, p, p.Starts[0])
			counts := map[int]int{}
			for enum := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
				info, ret := gi.GetComputeInstanceProfileInfo(enum, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
				if ret != nvml.SUCCESS {
					returns(t, "a compute profile that is not there", nvml.ERROR_NOT_SUPPORTED, ret)
					continue
				}
				counts[int(info.SliceCount)] = int(info.InstanceCount)
				if info.Id != uint32(enum) || info.SharedCopyEngineCount != uint32(p.CopyEngines) || info.SharedDecoderCount != uint32(p.Decoders) ||
					info.SharedEncoderCount != uint32(p.Encoders) || info.SharedJpegCount != uint32(p.JPEGEngines) || info.SharedOfaCount != uint32(p.OFAEngines) {
					t.Errorf("compute profile %d of %s is %+v", enum, p.Name, info)
				}
				if isWhole := int(info.SliceCount) == p.Slices; isWhole != (int(info.MultiprocessorCount) == p.Multiprocessors) {
					t.Errorf("compute profile %d of %s has %d multiprocessors of %d", enum, p.Name, info.MultiprocessorCount, p.Multiprocessors)
				}
				s.versionedComputeProfile(t, gi, enum, info)
			}
			if fmt.Sprint(counts) != fmt.Sprint(computeCounts[p.Slices]) {
				t.Errorf("compute instances of %s are %v, want %v", p.Name, counts, computeCounts[p.Slices])
			}
			const invalid = nvml.ERROR_INVALID_ARGUMENT
			refuses(t, "a compute profile past the end", invalid)(gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_COUNT, 0))
			refuses(t, "an engine profile past the end", invalid)(gi.GetComputeInstanceProfileInfo(0, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT))
			returns(t, "Destroy", nvml.SUCCESS, gi.Destroy())
		}
	})
}

// versionedComputeProfile checks the calls that go-nvml offers through a handler.
func (s suite) versionedComputeProfile(t *testing.T, gi nvml.GpuInstance, enum int, want nvml.ComputeInstanceProfileInfo) {
	t.Helper()
	handler := gi.GetComputeInstanceProfileInfoV
	v2 := func() (nvml.ComputeInstanceProfileInfo_v2, nvml.Return) { return handler(enum, 0).V2() }
	v3 := func() (nvml.ComputeInstanceProfileInfo_v3, nvml.Return) { return handler(enum, 0).V3() }
	if own, ok := gi.(model.VersionedGpuInstance); ok {
		v2 = func() (nvml.ComputeInstanceProfileInfo_v2, nvml.Return) {
			return own.ComputeInstanceProfileInfoV2(enum, 0)
		}
		v3 = func() (nvml.ComputeInstanceProfileInfo_v3, nvml.Return) {
			return own.ComputeInstanceProfileInfoV3(enum, 0)
		}
	}
	second, ret := v2()
	returns(t, "V2 of a compute profile", nvml.SUCCESS, ret)
	third, ret := v3()
	returns(t, "V3 of a compute profile", nvml.SUCCESS, ret)
	if second.Id != want.Id || second.MultiprocessorCount != want.MultiprocessorCount || second.Name != third.Name ||
		third.SliceCount != want.SliceCount || third.SharedOfaCount != want.SharedOfaCount || text(third.Name[:4]) != "MIG " {
		t.Errorf("a compute profile is %+v, V2 %+v, V3 %+v", want, second, third)
	}
}
