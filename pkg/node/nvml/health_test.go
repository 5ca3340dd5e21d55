package nvml_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func healthOf(t *testing.T, machine string) (*model.Machine, *nvml.Library, []gpu.GPU) {
	t.Helper()
	file := fixture.File(t, machine)
	simulated := fixture.Machine(t, file)
	library := fixture.Library(t, simulated)
	node, _, err := library.Discover()
	must(t, err)
	return simulated, library, node.GPUs
}

func TestHealth(t *testing.T) {
	for name, c := range map[string]struct {
		machine string
		set     model.Condition
		want    health.Level
	}{
		"healthy":     {"p5.48xlarge", model.Condition{}, health.Level{Release: 580, Action: health.ActionNone}},
		"to be reset": {"p5.48xlarge", model.Condition{RecoveryAction: "gpu-reset"}, health.Level{Release: 580, Action: health.ActionReset}},
		"reboot":      {"p5.48xlarge", model.Condition{RecoveryAction: "system-reboot"}, health.Level{Release: 580, Action: health.ActionSystemReboot}},
		"rows":        {"p5.48xlarge", model.Condition{RemapPending: true, RemapFailed: true}, health.Level{Release: 580, Action: health.ActionNone, RemapPending: true, RemapFailed: true}},
		"before R565": {"p4d.24xlarge", model.Condition{RecoveryAction: "gpu-reset", RemapPending: true}, health.Level{RemapPending: true}},
		"refused by the fabric manager": {"p5.48xlarge", model.Condition{Fabric: model.FabricNotJoined}, health.Level{Release: 580, Action: health.ActionNone, Fabric: health.FabricHealth{
			Summary: health.FabricUnhealthy, Reasons: "the GPU has not joined it: " + gonvml.ERROR_INSUFFICIENT_RESOURCES.Error(),
		}}},
		"without remapping": {"pascal", model.Condition{RemapFailed: true}, health.Level{}},
	} {
		t.Run(name, func(t *testing.T) {
			machine, library, gpus := healthOf(t, c.machine)
			must(t, machine.SetCondition(0, c.set))
			before, _ := machine.State()
			got, err := library.Health(gpus[0].UUID)
			if err != nil || got != c.want {
				t.Errorf("got %+v, %v, want %+v", got, err, c.want)
			}
			after, _ := machine.State()
			if calls := after.Calls.Since(before.Calls); calls.Total() != 2 { // of the GPU and of its fabric
				t.Errorf("got the calls %v, want two", calls)
			}
		})
	}
}

// timeless is a GPU whose driver does not say when a field was sampled.
type timeless struct{ gonvml.Device }

func (d timeless) GetFieldValues(values []gonvml.FieldValue) gonvml.Return {
	ret := d.Device.GetFieldValues(values)
	for i := range values {
		values[i].Timestamp = 0
	}
	return ret
}

// untouched is a GPU whose driver leaves all fields as they are.
type untouched struct{ gonvml.Device }

func (untouched) GetFieldValues([]gonvml.FieldValue) gonvml.Return { return gonvml.SUCCESS }

func TestHealthByFieldsWithoutATime(t *testing.T) {
	sick := model.Condition{RecoveryAction: "gpu-reset", RemapPending: true}
	for name, c := range map[string]struct {
		odd  func(gonvml.Device) gonvml.Device
		want health.Level
	}{
		"without a time": {func(d gonvml.Device) gonvml.Device { return timeless{d} }, health.Level{Action: health.ActionReset, Release: 580, RemapPending: true}},
		"untouched":      {func(d gonvml.Device) gonvml.Device { return untouched{d} }, health.Level{}},
	} {
		library, machine := withOdd(t, c.odd)
		node, _, err := library.Discover()
		must(t, err)
		must(t, machine.SetCondition(2, sick))
		if got, err := library.Health(node.GPUs[2].UUID); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", name, got, err, c.want)
		}
	}
}

// answering is a GPU whose driver answers about a field in another way.
type answering struct {
	gonvml.Device

	change func(*gonvml.FieldValue)
}

func (d answering) GetFieldValues(values []gonvml.FieldValue) gonvml.Return {
	ret := d.Device.GetFieldValues(values)
	d.change(&values[0])
	return ret
}

// What Health leaves out of account shows.
func TestHealthFields(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*gonvml.FieldValue)
		want   string
	}{
		"answered":       {func(*gonvml.FieldValue) {}, ""},
		"not supported":  {func(v *gonvml.FieldValue) { v.NvmlReturn = uint32(gonvml.ERROR_NOT_SUPPORTED) }, "NVML answered"},
		"another type":   {func(v *gonvml.FieldValue) { v.ValueType = 99 }, "unknown type 99"},
		"another action": {func(v *gonvml.FieldValue) { v.Value[0] = 200 }, "unknown action 200"},
	} {
		library, _ := withOdd(t, func(d gonvml.Device) gonvml.Device { return answering{d, c.change} })
		node, _, err := library.Discover()
		must(t, err)
		answers, err := library.HealthFields(node.GPUs[2].UUID)
		must(t, err)
		if len(answers) != 3 || answers[1].Err != nil || answers[2].Err != nil {
			t.Fatalf("%s: got %v", name, answers)
		}
		got := answers[0].Err
		if (got == nil) != (c.want == "") || got != nil && !strings.Contains(got.Error(), c.want) || errors.Is(got, nvml.ErrNotSupported) != (name == "not supported") {
			t.Errorf("%s: got %v, want %q", name, got, c.want)
		}
	}
}

func TestHealthOfALostGPU(t *testing.T) {
	machine, library, gpus := healthOf(t, "g5.12xlarge")
	must(t, machine.Lose(1))
	for i, g := range gpus {
		if _, err := library.Health(g.UUID); errors.Is(err, nvml.ErrGPULost) != (i == 1) {
			t.Errorf("GPU %d: got %v", i, err)
		}
	}
}

func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine, library, gpus := healthOf(t, "p5.48xlarge")
		defer func() { _ = library.Close() }()
		next := func() (nvml.Report, error) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			return library.NextEvent(ctx)
		}
		expect := func(what string, event model.Event, want nvml.Report) {
			t.Helper()
			go func() {
				time.Sleep(3 * time.Second)
				if err := machine.Inject(event); err != nil {
					t.Error(err)
				}
			}()
			if got, err := next(); err != nil || got != want {
				t.Errorf("%s: got %+v, %v, want %+v", what, got, err, want)
			}
			synctest.Wait()
		}
		expect("an XID", model.XID(3, 119), nvml.Report{UUID: gpus[3].UUID, Event: health.Event{XID: 119}})
		changed := model.XID(2, 0)
		changed.Type = 0x8000
		expect("a new action", changed, nvml.Report{UUID: gpus[2].UUID})
		wrong := model.XID(1, 0)
		wrong.Type = 0x2
		expect("two bits", wrong, nvml.Report{UUID: gpus[1].UUID, Event: health.Event{Incident: health.DoubleBitECC}})

		must(t, machine.SetMIGMode(0, true))
		instance, err := machine.CreateInstance(0, "3g.40gb", nil)
		must(t, err)
		inside := model.XID(0, 119)
		inside.GPUInstanceID = uint32(instance.ID)
		expect("of a partition", inside, nvml.Report{UUID: gpus[0].UUID, Event: health.Event{
			XID: 119, Place: gpu.Placement{ProfileID: instance.ProfileID, Start: instance.Start, Size: instance.Size},
		}})
		inside.GPUInstanceID = 99
		expect("of a partition that is gone", inside, nvml.Report{UUID: gpus[0].UUID, Event: health.Event{XID: 119}})

		if _, err := next(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v while nothing happens", err)
		}
	})
}

// A lost GPU ends the wait for all. The others report again when it is known to be lost.
func TestEventsBesideALostGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		machine, library, gpus := healthOf(t, "g5.12xlarge")
		defer func() { _ = library.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(2*time.Second, func() { _ = machine.Lose(1) })
		if _, err := library.NextEvent(ctx); !errors.Is(err, nvml.ErrGPULost) {
			t.Fatalf("got %v, want that a GPU is lost", err)
		}
		if _, err := library.Health(gpus[1].UUID); !errors.Is(err, nvml.ErrGPULost) {
			t.Fatalf("got %v", err)
		}
		go func() {
			time.Sleep(time.Second)
			_ = machine.Inject(model.XID(2, 13))
		}()
		if got, err := library.NextEvent(ctx); err != nil || got.UUID != gpus[2].UUID {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

// A caller that waits for events does not keep NVML open, and gets none while it rests.
func TestNVMLRestsDuringNextEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, library, gpus := healthOf(t, "g5.12xlarge")
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { _, err := library.NextEvent(ctx); done <- err }()
		for range 20 {
			time.Sleep(77 * time.Millisecond)
			if resting, err := library.Rest(); err != nil || !resting {
				t.Fatalf("got %t, %v, want that it rests", resting, err)
			}
			if _, err := library.Health(gpus[0].UUID); err != nil {
				t.Fatal(err)
			}
		}
		if err := library.Close(); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}
