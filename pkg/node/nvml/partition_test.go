package nvml_test

import (
	"errors"
	"slices"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// partitionable is a machine, its NVML, and the UUID of its first GPU.
func partitionable(t *testing.T, name string) (*model.Machine, *nvml.Library, string) {
	t.Helper()
	machine := fixture.Machine(t, fixture.File(t, name))
	return machine, fixture.Library(t, machine), machine.GPUs()[0].UUID
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func created(t *testing.T) func(instance int, err error) {
	t.Helper()
	return func(_ int, err error) { t.Helper(); must(t, err) }
}

func at(t *testing.T, library *nvml.Library, uuid string, profile, start int) gpu.Instance {
	t.Helper()
	instance, err := library.InstanceAt(uuid, profile, start)
	must(t, err)
	if instance == nil {
		t.Fatalf("no instance of profile %d at %d", profile, start)
	}
	return *instance
}

func TestAPartitionIsMadeAndUnmade(t *testing.T) {
	_, library, uuid := partitionable(t, "p5.48xlarge")
	must(t, library.SetMIG(uuid, true))
	if enabled, err := library.MIGEnabled(uuid); err != nil || !enabled {
		t.Fatalf("got %t, %v after MIG was enabled", enabled, err)
	}
	const profile, start, size = 14, 2, 2
	created(t)(library.CreateInstance(uuid, profile, start, size))
	instance := at(t, library, uuid, profile, start)
	if instance.Size != size || len(instance.Devices) != 0 {
		t.Errorf("got %+v, want an empty instance of %d slices", instance, size)
	}
	device, err := library.CreateComputeInstance(uuid, instance.ID)
	must(t, err)
	instance = at(t, library, uuid, profile, start)
	if !slices.Equal(instance.Devices, []gpu.MIGDevice{device}) || device.UUID == "" {
		t.Fatalf("got %+v, want the MIG device %+v", instance, device)
	}
	for compute, want := range map[int]string{device.ComputeID: device.UUID, device.ComputeID + 1: ""} {
		if got, err := library.DeviceAt(uuid, instance.ID, compute); err != nil || got != want {
			t.Errorf("compute instance %d: got %q, %v, want %q", compute, got, err, want)
		}
	}
	all, err := library.Instances(uuid)
	must(t, err)
	if len(all) != 1 || !slices.Equal(all[0].Devices, instance.Devices) {
		t.Errorf("got %+v, want %+v alone", all, instance)
	}
	if err := library.DestroyInstance(uuid, instance.ID); !errors.Is(err, nvml.ErrInUse) {
		t.Errorf("destroying an instance with a compute instance: got %v, want %v", err, nvml.ErrInUse)
	}
	if err := library.SetMIG(uuid, false); !errors.Is(err, nvml.ErrInUse) {
		t.Errorf("disabling MIG with an instance: got %v, want %v", err, nvml.ErrInUse)
	}
	for range 2 { // the second finds nothing, which is what was asked for
		must(t, library.DestroyComputeInstance(uuid, instance.ID, instance.Devices[0].ComputeID))
	}
	for range 2 {
		must(t, library.DestroyInstance(uuid, instance.ID))
	}
	if got, err := library.DeviceAt(uuid, instance.ID, 0); err != nil || got != "" {
		t.Errorf("got %q, %v of an instance that is gone", got, err)
	}
	must(t, library.SetMIG(uuid, false))
	if all, err := library.Instances(uuid); err != nil || len(all) > 0 {
		t.Errorf("got %v, %v, want no instance", all, err)
	}
	must(t, library.DestroyInstance(uuid, instance.ID)) // with MIG disabled nothing can be there
}

// A compute instance takes all of its GPU instance, whatever the board.
func TestTheComputeInstanceFillsTheGPUInstance(t *testing.T) {
	for _, name := range []string{"p5.48xlarge", "p6-b200.48xlarge"} {
		machine, library, uuid := partitionable(t, name)
		must(t, library.SetMIG(uuid, true))
		for _, profile := range machine.GPUs()[0].Board.MIG.Profiles {
			created(t)(library.CreateInstance(uuid, profile.ID, profile.Starts[0], profile.Size))
			instance := at(t, library, uuid, profile.ID, profile.Starts[0])
			_, err := library.CreateComputeInstance(uuid, instance.ID)
			must(t, err)
			state, err := machine.State()
			must(t, err)
			made := state.GPUs[0].Instances[0]
			if got := made.ComputeInstances[0].Size; got != profile.Slices || made.ComputeInstances[0].Profile != profile.Name {
				t.Errorf("%s %s: the compute instance has %d of %d slices", name, profile.Name, got, profile.Slices)
			}
			must(t, library.DestroyComputeInstance(uuid, instance.ID, 0))
			must(t, library.DestroyInstance(uuid, instance.ID))
		}
	}
}

func TestPartitionErrors(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	if _, err := library.CreateInstance(uuid, 19, 0, 1); !errors.Is(err, nvml.ErrNotSupported) {
		t.Errorf("with MIG disabled: got %v, want %v", err, nvml.ErrNotSupported)
	}
	must(t, library.SetMIG(uuid, true))
	created(t)(library.CreateInstance(uuid, 9, 0, 4))
	if _, err := library.CreateInstance(uuid, 19, 3, 1); !errors.Is(err, nvml.ErrInsufficientResources) {
		t.Errorf("on top of another: got %v, want %v", err, nvml.ErrInsufficientResources)
	}
	if instance, err := library.InstanceAt(uuid, 9, 4); err != nil || instance != nil {
		t.Errorf("got %v, %v, want no instance", instance, err)
	}
	if _, err := library.CreateComputeInstance(uuid, 14); !errors.Is(err, nvml.ErrNotFound) {
		t.Errorf("in an instance that is not there: got %v, want %v", err, nvml.ErrNotFound)
	}
	must(t, machine.Fail(model.Failure{Function: "nvmlGpuInstanceDestroy", Return: gonvml.ERROR_TIMEOUT}))
	err := library.DestroyInstance(uuid, at(t, library, uuid, 9, 0).ID)
	fixture.Sentence(t, err, "destroy the instance of GPU instance", uuid)
	if !errors.Is(err, nvml.ErrTransient) {
		t.Errorf("got %v, want %v", err, nvml.ErrTransient)
	}
}

// The mode of a board that would need a reset is never touched.
func TestTheModeOfAnAmpereBoardIsLeftAlone(t *testing.T) {
	machine, library, uuid := partitionable(t, "p4d.24xlarge")
	if err := library.SetMIG(uuid, true); !errors.Is(err, nvml.ErrResetRequired) {
		t.Errorf("got %v, want %v", err, nvml.ErrResetRequired)
	}
	state, err := machine.State()
	must(t, err)
	if got := state.GPUs[0].PendingMIGMode; got != "Disabled" {
		t.Errorf("the pending mode is %s", got)
	}
}

func TestABoardWithoutMIGHasNoInstances(t *testing.T) {
	_, library, uuid := partitionable(t, "g6.xlarge")
	if enabled, err := library.MIGEnabled(uuid); err != nil || enabled {
		t.Errorf("got %t, %v", enabled, err)
	}
	if instances, err := library.Instances(uuid); err != nil || len(instances) > 0 {
		t.Errorf("got %v, %v", instances, err)
	}
}

// A GPU that the driver does not know any more is lost with all that was on it.
func TestAPartitionOfAnUnknownGPU(t *testing.T) {
	_, library, _ := partitionable(t, "p5.48xlarge")
	const unknown = "GPU-00000000-0000-0000-0000-000000000000"
	_, err := library.InstanceAt(unknown, 14, 2)
	for _, err := range []error{err, library.DestroyInstance(unknown, 1), library.DestroyComputeInstance(unknown, 1, 0)} {
		if !errors.Is(err, nvml.ErrGPULost) || errors.Is(err, nvml.ErrNotFound) {
			t.Errorf("got %v, want %v", err, nvml.ErrGPULost)
		}
	}
}
