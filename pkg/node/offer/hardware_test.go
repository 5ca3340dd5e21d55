package offer

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// live is a node whose GPUs come, go, and change.
func live(t *testing.T, machine string, before func(*rig)) *rig {
	t.Helper()
	r := newRig(t, machine)
	r.live = true
	before(r)
	r.watch(t)
	return r
}

func nothing(*rig) {}

// A GPU that is lost gets no claims, on a board without MIG, too, and is offered again when it
// is back.
func TestALostGPUIsWithdrawn(t *testing.T) {
	for machine, lost := range map[string][]int{"g5.12xlarge": {1}, "g6.xlarge": {0}, "p5.48xlarge": {3}} {
		t.Run(machine, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := live(t, machine, nothing)
				all := r.offered()
				name := r.machine.GPUs()[lost[0]].GPU.Minor
				device := []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7"}[name]
				must(t, r.machine.Lose(lost[0]))
				after(2 * lookInterval)
				if slices.Contains(r.offered(), device) {
					t.Errorf("%s is lost and offered", device)
				}
				_, err := r.preparer.Prepare(t.Context(), fixture.Claim("c", fixture.Result("r", device)))
				fixture.Sentence(t, err, "device "+device+" is not on this node", "if its GPU was lost, repair it")
				fixture.Sentence(t, errorOf(r.warned()), ReasonUnreadable, "reset or replace it")
				must(t, r.machine.Return(lost[0]))
				after(rereads.Cap)
				if got := r.offered(); !slices.Equal(got, all) {
					t.Errorf("got %v after the GPU was back, want %v", got, all)
				}
			})
		})
	}
}

type errorOf string

func (e errorOf) Error() string { return string(e) }

// A GPU whose initialisation takes longer than the plugin's is offered when it is there.
func TestAGPUThatComesLateIsOffered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "g5.12xlarge", func(r *rig) { must(t, r.machine.Detach(3)) })
		if got := r.offered(); len(got) != 3 {
			t.Errorf("got %v, want three GPUs", got)
		}
		must(t, r.machine.Attach(3))
		after(3 * lookInterval)
		if got := r.offered(); len(got) != 4 {
			t.Errorf("got %v, want all GPUs", got)
		}
		must(t, r.machine.Detach(0))
		after(3 * lookInterval)
		if got := r.offered(); len(got) != 3 {
			t.Errorf("got %v, want what is left", got)
		}
	})
}

// Until the fabric manager is done, CUDA does not start, and the links are down.
func TestAFabricThatComesLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "p5.48xlarge", func(r *rig) { must(t, r.machine.SetFabric(model.FabricNotStarted)) })
		check := func(state gpu.FabricState, grouped bool) {
			t.Helper()
			for _, device := range r.devices() {
				tainted := ""
				for _, taint := range device.Taints {
					if taint.Key == slice.TaintFabric {
						tainted = taint.Value
					}
				}
				_, has := device.Attributes[gpu.AttributeNVLinkGroup]
				whole := len(device.Attributes) > 0 && *device.Attributes[gpu.AttributeType].StringValue == "gpu"
				if tainted != string(state) || whole && has != grouped {
					t.Errorf("%s has the taint %q, want %q, and an NVLink group: %t, want %t", device.Name, tainted, state, has, grouped)
				}
			}
		}
		check(gpu.FabricNotStarted, false)
		fixture.Sentence(t, errorOf(r.warned()), ReasonFabricPending, "gpu-0 (NotStarted)", "nvidia-fabricmanager")
		must(t, r.machine.SetFabric(model.FabricInProgress))
		after(2 * lookInterval)
		check(gpu.FabricInProgress, false)
		must(t, r.machine.SetFabric(model.FabricCompleted))
		after(2 * lookInterval)
		check(gpu.FabricReady, true)
	})
}

// Boards without a fabric are not concerned.
func TestNoFabricNoTaint(t *testing.T) {
	for _, machine := range []string{"g5.12xlarge", "p4d.24xlarge"} {
		synctest.Test(t, func(t *testing.T) {
			r := live(t, machine, nothing)
			for _, device := range r.devices() {
				if len(device.Taints) > 0 {
					t.Errorf("%s of %s has the taints %v", device.Name, machine, device.Taints)
				}
			}
		})
	}
}
