package offer

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func TestForeignInstancesAreOfferedUnchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "p5.48xlarge")
		r.watch(t)
		before := r.offered()
		after(time.Minute)
		if got := strings.Count(r.said(), "Offering GPUs"); got != 1 {
			t.Errorf("nothing changed, and the GPUs were offered %d times", got)
		}
		must(t, r.machine.SetMIGMode(2, true))
		after(lookInterval)
		if !slices.Equal(r.offered(), before) {
			t.Error("an empty GPU is offered differently when MIG is enabled")
		}
		half := 0
		instance, err := r.machine.CreateInstance(2, "3g.40gb", &half)
		must(t, err)
		after(lookInterval)
		names := r.offered()
		for name, want := range map[string]bool{
			"gpu-2": false, "gpu-2-mig-7g80gb-0-0": false, "gpu-2-mig-4g40gb-5-0": false,
			"gpu-2-mig-3g40gb-9-0": true, "gpu-2-mig-3g40gb-9-4": true, "gpu-3": true,
		} {
			if slices.Contains(names, name) != want {
				t.Errorf("%s is offered: %t", name, !want)
			}
		}
		must(t, r.machine.DestroyInstance(2, instance.ID))
		after(lookInterval)
		if !slices.Equal(r.offered(), before) {
			t.Error("the GPU is not offered as before")
		}
	})
}

func TestWhatWasMadeForClaimsChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "p5.48xlarge")
		r.watch(t)
		before := r.offered()
		g := r.machine.GPUs()[0]
		must(t, r.machine.SetMIGMode(0, true))
		start := 2
		instance, err := r.machine.CreateInstance(0, "2g.20gb", &start)
		must(t, err)
		must(t, r.records.Put(t.Context(), journal.Record{
			ClaimUID: "uid-own", Namespace: "default", Name: "own", BootID: thisBoot, State: journal.Prepared,
			Devices: []journal.Device{{Device: "gpu-0-mig-2g20gb-14-2", Pool: r.NodeName, UUID: g.UUID, Request: "r", PartUUID: instance.ComputeInstances[0].UUID, Steps: []journal.Step{{Name: "make-partition"}}, Form: gpu.Form{
				Base: gpu.BasePartition, Placement: gpu.Placement{ProfileID: instance.ProfileID, Start: start, Size: instance.Size},
			}}},
		}))
		after(lookInterval)
		if !slices.Equal(r.offered(), before) {
			t.Error("the offer has changed")
		}
	})
}

func TestUnreadableInstancesAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "p5.48xlarge")
		r.watch(t)
		before := r.offered()
		busy := 5
		must(t, r.machine.Fail(model.Failure{Function: "nvmlDeviceGetMigMode", Return: 10 /* NVML_ERROR_TIMEOUT */, GPU: &busy}))
		after(time.Minute)
		if got := strings.Count(r.said(), "Cannot read the GPUs"); got != 1 {
			t.Errorf("it is said %d times:\n%s", got, r.said())
		}
		if !slices.Equal(r.offered(), before) {
			t.Error("the offer has changed")
		}
	})
}

func TestAnObstacleIsLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, "mig-static")
		r.watch(t)
		if !strings.Contains(r.said(), "are not offered; nor is their part of the GPU") {
			t.Errorf("nothing is said of the instance with two compute instances:\n%s", r.said())
		}
		if names := r.offered(); slices.Contains(names, "gpu-3-mig-4g20gb-5-0") || !slices.Contains(names, "gpu-3-mig-1g5gb-19-4") {
			t.Errorf("got %v", names)
		}
	})
}

func TestABoardThatDiffersFromTheCatalogueIsLoggedOnce(t *testing.T) {
	for what, change := range map[string]func(*gpu.GPU){
		"profile 1g.10gb (ID 19) has MiB of memory 9728, predicted was 9984": func(g *gpu.GPU) {
			g.Profiles = slices.Clone(g.Profiles)
			g.Profiles[0].MemoryBytes = 9728 << 20
		},
		"does not list MIG profiles while MIG is disabled": func(g *gpu.GPU) { g.Profiles = nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, "p5.48xlarge")
			for i := range r.node.GPUs {
				change(&r.node.GPUs[i])
			}
			r.watch(t)
			if got := strings.Count(r.said(), what); got != 1 {
				t.Errorf("%q is said %d times:\n%s", what, got, r.said())
			}
		})
	}
}
