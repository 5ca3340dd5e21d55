package abi_test

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// enabled reports whether the description has MIG enabled on a GPU.
func (s suite) enabled(gpu int) bool { return s.node.GPUs[gpu].MIG != nil }

// resetless reports whether a board's MIG mode changes at once.
func resetless(board catalog.Board) bool {
	return board.Architecture == "Hopper" || board.Architecture == "Blackwell"
}

// slicesOf is how many compute slices a board has.
func slicesOf(board catalog.Board) int {
	most := 0
	for _, p := range board.MIG.Profiles {
		most = max(most, p.Slices)
	}
	return most
}

// partition runs a test on one GPU of each board of the machine that can be
// partitioned and is not, with MIG enabled.
func (s suite) partition(t *testing.T, test func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device)) {
	t.Helper()
	lib := initialised(t)
	for _, gpu := range s.partitionable(t) {
		s.enable(t, lib, gpu)
		test(t, lib, gpu, device(t, lib, gpu))
	}
}

func (s suite) partitionable(t *testing.T) []int {
	t.Helper()
	var gpus []int
	var boards []string
	for i, g := range s.node.GPUs {
		if s.board(t, i).MIG != nil && !s.enabled(i) && !slices.Contains(boards, g.Board) {
			gpus, boards = append(gpus, i), append(boards, g.Board)
		}
	}
	if len(gpus) == 0 {
		t.Skip("no GPU of this machine can be partitioned")
	}
	return gpus
}

func (s suite) enable(t *testing.T, lib nvml.Interface, gpu int) {
	t.Helper()
	activation, ret := device(t, lib, gpu).SetMigMode(nvml.DEVICE_MIG_ENABLE)
	returns(t, "SetMigMode", nvml.SUCCESS, ret)
	if resetless(s.board(t, gpu)) {
		returns(t, "the activation of MIG", nvml.SUCCESS, activation)
		return
	}
	returns(t, "the activation of MIG", nvml.ERROR_RESET_REQUIRED, activation)
	act(t, s.control.Reset(gpu))
}

// restoreMIG leaves the GPUs partitioned as they are described, and checks that
// nothing happened to those that have instances from the start.
func (s suite) restoreMIG(t *testing.T) {
	t.Helper()
	for i, g := range s.state(t).GPUs {
		if s.enabled(i) {
			s.checkSetup(t, g, s.node.GPUs[i].MIG)
			continue
		}
		if !g.MIGCapable {
			continue
		}
		act(t, s.control.Occupy(i, nil, false))
		for _, gi := range g.Instances {
			act(t, s.control.Occupy(i, &gi.ID, false))
			act(t, s.control.DestroyInstance(i, gi.ID))
		}
		act(t, s.control.SetMIGMode(i, false))
		if g.MIGMode == "Enabled" && !resetless(s.board(t, i)) {
			act(t, s.control.Reset(i))
		}
	}
}

func (s suite) checkSetup(t *testing.T, g model.GPUState, setup *model.MIGSetup) {
	t.Helper()
	if len(g.Instances) != len(setup.Instances) {
		t.Errorf("GPU %d has %d instances, want the %d that it started with", g.Index, len(g.Instances), len(setup.Instances))
	}
	for _, want := range setup.Instances {
		if !slices.ContainsFunc(g.Instances, func(gi model.InstanceState) bool {
			return gi.Profile == want.Profile && gi.Start == want.Start && len(gi.ComputeInstances) == max(1, len(want.ComputeSlices))
		}) {
			t.Errorf("GPU %d has lost its %s at %d", g.Index, want.Profile, want.Start)
		}
	}
}

func gpuProfile(t *testing.T, d nvml.Device, p catalog.Profile) *nvml.GpuInstanceProfileInfo {
	t.Helper()
	info, ret := d.GetGpuInstanceProfileInfo(p.Enum)
	if ret != nvml.SUCCESS {
		t.Fatalf("read profile %s: %v", p.Name, ret)
	}
	return &info
}

// place creates a GPU instance, which has to succeed.
func place(t *testing.T, d nvml.Device, p catalog.Profile, start int) nvml.GpuInstance {
	t.Helper()
	gi, ret := d.CreateGpuInstanceWithPlacement(gpuProfile(t, d, p), placement(p, start))
	if ret != nvml.SUCCESS {
		t.Fatalf("create %s at %d: %v", p.Name, start, ret)
	}
	return gi
}

func placement(p catalog.Profile, start int) *nvml.GpuInstancePlacement {
	return &nvml.GpuInstancePlacement{Start: uint32(start), Size: uint32(p.Size)}
}

// whole finds the compute instance profile that takes all of a GPU instance.
func whole(t *testing.T, gi nvml.GpuInstance, slices int) *nvml.ComputeInstanceProfileInfo {
	t.Helper()
	for enum := range nvml.COMPUTE_INSTANCE_PROFILE_COUNT {
		info, ret := gi.GetComputeInstanceProfileInfo(enum, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
		if ret == nvml.SUCCESS && int(info.SliceCount) == slices {
			return &info
		}
	}
	t.Fatalf("no compute instance profile has %d slices", slices)
	return nil
}

// fill creates a compute instance that takes all of a GPU instance.
func fill(t *testing.T, gi nvml.GpuInstance, slices int) nvml.ComputeInstance {
	t.Helper()
	ci, ret := gi.CreateComputeInstance(whole(t, gi, slices))
	if ret != nvml.SUCCESS {
		t.Fatalf("create a compute instance: %v", ret)
	}
	return ci
}

// migDevice is the MIG device of a compute instance.
func migDevice(t *testing.T, ci nvml.ComputeInstance) nvml.Device {
	t.Helper()
	info, ret := ci.GetInfo()
	if ret != nvml.SUCCESS {
		t.Fatalf("read a compute instance: %v", ret)
	}
	return info.Device
}

// smallest and largest are profiles that every board has: of one slice and of all.
func smallest(t *testing.T, board catalog.Board) catalog.Profile {
	t.Helper()
	p, found := board.MIG.ProfileByEnum(nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	if !found {
		t.Fatalf("board %s has no profile of one slice", board.Name)
	}
	return p
}

func largest(board catalog.Board) catalog.Profile {
	return slices.MaxFunc(board.MIG.Profiles, func(a, b catalog.Profile) int { return a.Slices - b.Slices })
}
