package nvml_test

import (
	"cmp"
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// listed are a board's profiles in the order in which NVML lists them.
func listed(info model.GPUInfo) []gpu.Profile {
	var profiles []gpu.Profile
	for enum := range gonvml.GPU_INSTANCE_PROFILE_COUNT {
		if p, found := info.Board.MIG.ProfileByEnum(enum); found {
			profiles = append(profiles, p.GPU())
		}
	}
	return profiles
}

// checkInstances holds what was discovered against what the simulator has.
func checkInstances(t *testing.T, got gpu.GPU, machine *model.Machine) {
	t.Helper()
	var want []gpu.Instance
	for _, state := range machine.Instances(got.Index) {
		i := gpu.Instance{ID: state.ID, ProfileID: state.ProfileID, Start: state.Start, Size: state.Size}
		for _, c := range state.ComputeInstances {
			i.Devices = append(i.Devices, gpu.MIGDevice{ComputeID: c.ID, UUID: c.UUID, Slices: c.Size})
		}
		want = append(want, i)
	}
	byID := func(a, b gpu.Instance) int { return cmp.Compare(a.ID, b.ID) }
	slices.SortFunc(want, byID)
	instances := slices.Clone(got.Instances)
	slices.SortFunc(instances, byID)
	if !reflect.DeepEqual(instances, want) {
		t.Errorf("GPU %d:\ngot instances  %+v\nwant instances %+v", got.Index, instances, want)
	}
}

// go-nvlib names the profiles in NVIDIA's driver, from the same numbers.
func TestProfilesAreNamedAsNVIDIANamesThem(t *testing.T) {
	for _, name := range nodes.Names() {
		machine := fixture.Machine(t, fixture.File(t, name))
		session := machine.NewSession()
		t.Cleanup(session.Close)
		if ret := session.Init(); ret != gonvml.SUCCESS {
			t.Fatal(ret)
		}
		oracle := map[string]bool{}
		err := device.New(session).VisitMigProfiles(func(p device.MigProfile) error {
			oracle[p.String()] = true
			return nil
		})
		must(t, err)
		for _, g := range fixture.Node(t, name).GPUs {
			for _, p := range g.Profiles {
				if !oracle[p.Name] {
					t.Errorf("%s, GPU %d: go-nvlib knows no %s, only %v", name, g.Index, p.Name, oracle)
				}
			}
		}
	}
}

// A driver that does not list profiles while MIG is disabled does so as soon
// as it is enabled.
func TestRefreshSeesForeignChanges(t *testing.T) {
	file := fixture.File(t, "p4d.24xlarge")
	machine := fixture.Machine(t, file)
	library := fixture.Library(t, machine)
	silent := model.Failure{Function: "nvmlDeviceGetGpuInstanceProfileInfo", Return: gonvml.ERROR_NOT_SUPPORTED}
	must(t, machine.Fail(silent))
	node, _, err := library.Discover()
	must(t, err)
	if g := node.GPUs[1]; len(g.Profiles) != 0 || g.MIG != gpu.MIGDisabled {
		t.Fatalf("got %+v from a driver that lists nothing", g)
	}
	must(t, machine.Clear())
	must(t, machine.SetMIGMode(1, true))
	must(t, machine.Reset(1))
	_, err = machine.CreateInstance(1, "2g.10gb", nil)
	must(t, err)
	gpus, err := library.Refresh(node.GPUs)
	must(t, err)
	if g := gpus[1]; g.MIG != gpu.MIGEnabled || len(g.Profiles) != 7 || len(g.Instances) != 1 {
		t.Errorf("got mode %v, %d profiles and instances %v", g.MIG, len(g.Profiles), g.Instances)
	}
	checkInstances(t, gpus[1], machine)
	if !reflect.DeepEqual(gpus[0], node.GPUs[0]) || node.GPUs[1].MIG != gpu.MIGDisabled {
		t.Error("another GPU, or the input, was changed")
	}
}

func TestRefreshNamesTheCallThatFailed(t *testing.T) {
	for function, asked := range map[string]string{
		"nvmlDeviceGetHandleByUUID":                 "open",
		"nvmlDeviceGetMigMode":                      "read the MIG mode",
		"nvmlDeviceGetGpuInstanceRemainingCapacity": "count the room for GPU instances",
		"nvmlDeviceGetGpuInstances":                 "list the GPU instances",
		"nvmlGpuInstanceGetInfo":                    "read a GPU instance",
		"nvmlGpuInstanceGetComputeInstanceById":     "read the MIG device of compute instance 0",
		"nvmlComputeInstanceGetInfo_v2":             "read the MIG device of compute instance 0",
		"nvmlDeviceGetAttributes_v2":                "read the MIG device of compute instance 0",
	} {
		t.Run(function, func(t *testing.T) {
			file := fixture.File(t, "mig-static")
			machine := fixture.Machine(t, file)
			library := fixture.Library(t, machine)
			node, _, err := library.Discover()
			must(t, err)
			must(t, machine.Fail(model.Failure{Function: function, Return: gonvml.ERROR_TIMEOUT}))
			_, err = fixture.Library(t, machine).Refresh(node.GPUs) // which knows nothing yet
			var failure *nvml.Error
			if !errors.As(err, &failure) || failure.Call != asked {
				t.Errorf("got %v, want an error of %q", err, asked)
			}
		})
	}
}
