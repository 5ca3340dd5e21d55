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

// watched is a machine whose GPUs are looked at.
type watched struct {
	*testing.T
	machine *model.Machine
	library *nvml.Library
	client  *model.Session
	gpus    []gpu.GPU
}

func watch(t *testing.T, name string, before func(*model.Machine)) *watched {
	t.Helper()
	file := fixture.File(t, name)
	w := &watched{T: t, machine: fixture.Machine(t, file)}
	before(w.machine)
	w.library, w.client = fixture.Client(t, w.machine)
	node, unreadable, err := w.library.Discover()
	must(t, errors.Join(append(unreadable, err)...))
	w.gpus = node.GPUs
	return w
}

// look returns the calls of NVML that it took.
func (w *watched) look() model.Calls {
	w.Helper()
	before, err := w.machine.State()
	must(w.T, err)
	w.gpus, err = w.library.Refresh(w.gpus)
	must(w.T, err)
	after, err := w.machine.State()
	must(w.T, err)
	return after.Calls.Since(before.Calls)
}

// looks looks until the GPUs are as wanted, which they have to be after so many looks.
func (w *watched) looks(limit int, what string, as func([]gpu.GPU) bool) {
	w.Helper()
	for range limit {
		if w.look(); as(w.gpus) {
			return
		}
	}
	w.Errorf("%s is not seen with %d looks", what, limit)
}

// partitioned makes seven instances on the first GPU.
func partitioned(t *testing.T) func(*model.Machine) {
	t.Helper()
	return func(machine *model.Machine) {
		must(t, machine.SetMIGMode(0, true))
		for start := range 7 {
			_, err := machine.CreateInstance(0, "1g.10gb", &start)
			must(t, err)
		}
	}
}

func asIs(*model.Machine) {}

// The room for instances is as before, and of all other questions a look asks one.
func TestALookSeesAnInstanceMadeInThePlaceOfAnother(t *testing.T) {
	w := watch(t, "p5.48xlarge", partitioned(t))
	for range 3 {
		w.look()
	}
	g := w.gpus[0]
	last := g.Instances[len(g.Instances)-1]
	must(t, w.library.DestroyComputeInstance(g.UUID, last.ID, last.Devices[0].ComputeID))
	must(t, w.library.DestroyInstance(g.UUID, last.ID))
	const withMediaExtensions = 20
	id, err := w.library.CreateInstance(g.UUID, withMediaExtensions, last.Start, last.Size)
	must(t, err)
	made, err := w.library.CreateComputeInstance(g.UUID, id)
	must(t, err)
	if made.UUID != last.Devices[0].UUID {
		t.Fatalf("the next MIG device has the UUID %s, want %s again", made.UUID, last.Devices[0].UUID)
	}
	w.look()
	if !slices.ContainsFunc(w.gpus[0].Instances, func(i gpu.Instance) bool { return i.Start == last.Start && i.ProfileID == withMediaExtensions }) {
		t.Errorf("the look sees %+v, want an instance of another profile at memory slice %d", w.gpus[0].Instances, last.Start)
	}
}

// On a node that does not change, no look takes more than two calls per GPU.
func TestALookTakesTwoCallsPerGPU(t *testing.T) {
	for name, before := range map[string]func(*model.Machine){
		"g6.xlarge": asIs, "g5.12xlarge": asIs, "p4d.24xlarge": asIs, "mig-static": asIs, "mixed": asIs, "p5.48xlarge": partitioned(t),
	} {
		t.Run(name, func(t *testing.T) {
			w := watch(t, name, before)
			w.look() // at what has two compute instances, or none, it looks twice
			for range 60 {
				if calls := w.look(); calls.Total() > 2*len(w.gpus) || calls["nvmlDeviceGetHandleByUUID"] > 0 {
					t.Errorf("%d GPUs took %d calls: %v", len(w.gpus), calls.Total(), calls)
				}
			}
		})
	}
}

func TestLooksSeeWhatChanges(t *testing.T) {
	first := func(instances int) func([]gpu.GPU) bool {
		return func(gpus []gpu.GPU) bool { return len(gpus[0].Instances) == instances }
	}
	destroy := func(t *testing.T, w *watched, start int) {
		t.Helper()
		for _, instance := range w.machine.Instances(0) {
			if instance.Start == start {
				must(t, w.machine.DestroyInstance(0, instance.ID))
			}
		}
	}
	create := func(t *testing.T, w *watched, profile string, start int) {
		t.Helper()
		_, err := w.machine.CreateInstance(0, profile, &start)
		must(t, err)
	}
	w := watch(t, "p5.48xlarge", partitioned(t))
	w.look()
	destroy(t, w, 3)
	w.looks(1, "an instance that goes", first(6))
	create(t, w, "1g.10gb", 3)
	w.looks(1, "an instance that comes", first(7))
	destroy(t, w, 3)
	create(t, w, "1g.10gb+me", 3) // takes the same place, with the same ID and UUID
	w.looks(40, "an instance that takes the place of another", func(gpus []gpu.GPU) bool {
		return slices.ContainsFunc(gpus[0].Instances, func(i gpu.Instance) bool { return i.Start == 3 && i.ProfileID == 20 })
	})
	checkInstances(t, w.gpus[0], w.machine)
	for start := range 7 {
		destroy(t, w, start)
	}
	must(t, w.machine.SetMIGMode(0, false))
	w.looks(1, "that MIG was disabled", func(gpus []gpu.GPU) bool { return gpus[0].MIG == gpu.MIGDisabled })
	must(t, w.machine.SetMIGMode(0, true))
	w.looks(1, "that MIG was enabled", func(gpus []gpu.GPU) bool { return gpus[0].MIG == gpu.MIGEnabled })
}

// Links that were down at the first look get their group when they are up.
func TestLooksSeeTheFabric(t *testing.T) {
	w := watch(t, "p5.48xlarge", func(machine *model.Machine) { must(t, machine.SetFabric(model.FabricNotStarted)) })
	if g := w.gpus[0]; g.NVLinkGroup != nil || g.Fabric != gpu.FabricNotStarted {
		t.Errorf("got the group %v and the state %q before the fabric manager", g.NVLinkGroup, g.Fabric)
	}
	must(t, w.machine.SetFabric(model.FabricCompleted))
	w.looks(2, "the fabric", func(gpus []gpu.GPU) bool {
		for _, g := range gpus {
			if g.NVLinkGroup == nil || g.Fabric != gpu.FabricReady {
				return false
			}
		}
		return true
	})
	must(t, w.machine.SetFabric(model.FabricInProgress)) // it was restarted
	w.looks(40, "that the fabric is gone", func(gpus []gpu.GPU) bool { return gpus[0].NVLinkGroup == nil })
}

func TestLooksReportGPUsThatComeAndGo(t *testing.T) {
	w := watch(t, "g5.12xlarge", func(machine *model.Machine) { must(t, machine.Detach(3)) })
	w.look()
	must(t, w.machine.Attach(3))
	var err error
	for range 2 {
		_, looked := w.library.Refresh(w.gpus)
		err = errors.Join(err, looked)
	}
	if !errors.Is(err, nvml.ErrGPUsChanged) {
		t.Errorf("got %v, want ErrGPUsChanged", err)
	}
	must(t, w.machine.Lose(1))
	if _, err := w.library.Refresh(w.gpus); !errors.Is(err, nvml.ErrGPULost) {
		t.Errorf("got %v, want ErrGPULost", err)
	}
	must(t, w.machine.Return(1))
	node, unreadable, err := w.library.Discover()
	must(t, errors.Join(append(unreadable, err)...))
	if len(node.GPUs) != 4 {
		t.Errorf("got %d GPUs, want all four", len(node.GPUs))
	}
}

// NVML can be shut down while no call runs, and what was learned before is not used after.
func TestNVMLRestsUntilTheNextCall(t *testing.T) {
	w := watch(t, "p5.48xlarge", partitioned(t))
	meter := w.library.Meter(w.machine.Instances(0)[0].ComputeInstances[0].UUID)
	_, err := meter.Read()
	must(t, err)
	resting, err := w.library.Rest()
	must(t, err)
	if _, ret := w.client.DeviceGetCount(); !resting || ret != gonvml.ERROR_UNINITIALIZED {
		t.Errorf("resting: %t, NVML answers %v", resting, ret)
	}
	if calls := w.look(); calls["nvmlInit_v2"] != 1 || calls["nvmlDeviceGetHandleByUUID"] != len(w.gpus) {
		t.Errorf("got the calls %v, want NVML initialized and all handles learned anew", calls)
	}
	checkInstances(t, w.gpus[0], w.machine)
	if _, err := meter.Read(); err != nil {
		t.Errorf("a meter from before: %v", err)
	}
	must(t, meter.Close())
}

// GPUs that come are seen although NVML rests between looks, which ends what it knows.
func TestLooksCountAcrossRests(t *testing.T) {
	w := watch(t, "g5.12xlarge", func(machine *model.Machine) { must(t, machine.Detach(3)) })
	must(t, w.machine.Attach(3))
	var seen error
	for range 2 {
		_, err := w.library.Rest()
		must(t, err)
		_, err = w.library.Refresh(w.gpus)
		seen = errors.Join(seen, err)
	}
	if !errors.Is(seen, nvml.ErrGPUsChanged) {
		t.Errorf("got %v, want ErrGPUsChanged", seen)
	}
}

// A MIG device is looked for by its UUID once at most.
func TestMetersSearchOnce(t *testing.T) {
	w := watch(t, "p5.48xlarge", partitioned(t))
	meter := fixture.Library(t, w.machine).Meter(w.machine.Instances(0)[0].ComputeInstances[0].UUID)
	for range 3 {
		_, err := meter.Read()
		must(t, err)
	}
	state, err := w.machine.State()
	must(t, err)
	if got := state.Calls["nvmlDeviceGetHandleByUUID"]; got != 1 {
		t.Errorf("looked for a UUID %d times", got)
	}
}
