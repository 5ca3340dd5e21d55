package driver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/test/fixture"
)

// watching looks at a node's instances until the test ends, in a bubble of time.
func watching(t *testing.T, h *hardware) (*Driver, func() string) {
	t.Helper()
	d, err := New(options(t, newAPIServer(), h))
	if err != nil {
		t.Fatal(err)
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
	if err := d.openHardware(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.watchGPUs(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	return d, func() string { return logger.GetSink().(ktesting.Underlier).GetBuffer().String() }
}

// offered are the names of the devices that should be published.
func offered(d *Driver) []string {
	var names []string
	for _, slice := range d.publisher.get().Pools[fixture.NodeName].Slices {
		for _, device := range slice.Devices {
			names = append(names, device.Name)
		}
	}
	return names
}

func TestWhatSomebodyElseMakesIsOfferedAsItIs(t *testing.T) {
	h := newHardware(t)
	synctest.Test(t, func(t *testing.T) {
		d, log := watching(t, h)
		before := offered(d)
		after(time.Minute)
		if got := strings.Count(log(), "Offering GPUs"); got != 1 {
			t.Errorf("nothing changed, and the GPUs were offered %d times", got)
		}
		must(t, h.machine.SetMIGMode(2, true))
		after(lookInterval)
		if !slices.Equal(offered(d), before) {
			t.Error("an empty GPU is offered differently when MIG is enabled")
		}
		half := 0
		instance, err := h.machine.CreateInstance(2, "3g.40gb", &half)
		must(t, err)
		after(lookInterval)
		names := offered(d)
		for name, want := range map[string]bool{
			"gpu-2": false, "gpu-2-mig-7g80gb-0-0": false, "gpu-2-mig-4g40gb-5-0": false,
			"gpu-2-mig-3g40gb-9-0": true, "gpu-2-mig-3g40gb-9-4": true, "gpu-3": true,
		} {
			if slices.Contains(names, name) != want {
				t.Errorf("%s is offered: %t", name, !want)
			}
		}
		must(t, h.machine.DestroyInstance(2, instance.ID))
		after(lookInterval)
		if !slices.Equal(offered(d), before) {
			t.Error("the GPU is not offered as before")
		}
	})
}

func TestWhatWasMadeForClaimsChangesNothing(t *testing.T) {
	h := newHardware(t)
	synctest.Test(t, func(t *testing.T) {
		d, _ := watching(t, h)
		before := offered(d)
		g := h.machine.GPUs()[0]
		must(t, h.machine.SetMIGMode(0, true))
		start := 2
		instance, err := h.machine.CreateInstance(0, "2g.20gb", &start)
		must(t, err)
		records, err := journal.Open(DataDir(d.PluginsDir, d.Name) + "/claims")
		must(t, err)
		must(t, records.Put(t.Context(), journal.Record{
			ClaimUID: "uid-own", Namespace: "default", Name: "own", BootID: d.BootID, State: journal.Prepared,
			Devices: []journal.Device{{Device: "gpu-0-mig-2g20gb-14-2", Pool: d.NodeName, UUID: g.UUID, Request: "r", Shape: "partition", Partition: journal.Partition{
				ProfileID: instance.ProfileID, Start: start, Size: instance.Size, UUID: instance.ComputeInstances[0].UUID,
			}}},
		}))
		after(lookInterval)
		if !slices.Equal(offered(d), before) {
			t.Error("the offer has changed")
		}
	})
}

func TestInstancesThatCannotBeReadAreSaidOnce(t *testing.T) {
	h := newHardware(t)
	synctest.Test(t, func(t *testing.T) {
		d, log := watching(t, h)
		before := offered(d)
		must(t, h.machine.Lose(5))
		after(time.Minute)
		if got := strings.Count(log(), "cannot be read"); got != 1 {
			t.Errorf("it is said %d times:\n%s", got, log())
		}
		if !slices.Equal(offered(d), before) {
			t.Error("the offer has changed")
		}
	})
}

func TestAnInstanceThatIsOnlyInTheWayIsSaid(t *testing.T) {
	h := &hardware{machine: fixture.Machine(t, fixture.File(t, "mig-static"))}
	h.library, h.node = fixture.Library(t, h.machine), fixture.Node(t, "mig-static")
	synctest.Test(t, func(t *testing.T) {
		d, log := watching(t, h)
		if !strings.Contains(log(), "are not offered; nor is their part of the GPU") {
			t.Errorf("nothing is said of the instance with two compute instances:\n%s", log())
		}
		if names := offered(d); slices.Contains(names, "gpu-3-mig-4g20gb-5-0") || !slices.Contains(names, "gpu-3-mig-1g5gb-19-4") {
			t.Errorf("got %v", names)
		}
	})
}

func TestABoardThatIsNotAsPredictedIsSaidOnce(t *testing.T) {
	h := newHardware(t)
	for i := range h.node.GPUs {
		h.node.GPUs[i].Profiles = slices.Clone(h.node.GPUs[i].Profiles)
		h.node.GPUs[i].Profiles[0].MemoryBytes = 9728 << 20
	}
	silent := newHardware(t)
	for i := range silent.node.GPUs {
		silent.node.GPUs[i].Profiles = nil
	}
	for what, h := range map[string]*hardware{
		"profile 1g.10gb (ID 19) has MiB of memory 9728, predicted was 9984": h,
		"does not list MIG profiles while MIG is disabled":                   silent,
	} {
		synctest.Test(t, func(t *testing.T) {
			_, log := watching(t, h)
			if got := strings.Count(log(), what); got != 1 {
				t.Errorf("%q is said %d times:\n%s", what, got, log())
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
