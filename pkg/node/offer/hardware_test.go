package offer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
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

// A GPU that is lost gets no claims, on a board without MIG, too, but stays published: pods may
// have it. It gets claims again when it is back.
func TestALostGPUGetsNoClaims(t *testing.T) {
	for machine, lost := range map[string][]int{"g5.12xlarge": {1}, "g6.xlarge": {0}, "p5.48xlarge": {3}} {
		t.Run(machine, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := live(t, machine, nothing)
				all := r.offered()
				name := r.machine.GPUs()[lost[0]].GPU.Minor
				device := []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7"}[name]
				must(t, r.machine.Lose(lost[0]))
				after(2 * lookInterval)
				if got := r.tainted(device); !slices.Equal(got, []string{"gpu.nvidia.com/gpu-lost=:NoSchedule"}) {
					t.Errorf("%s is lost and has the taints %v", device, got)
				}
				if got := r.offered(); !slices.Equal(got, all) {
					t.Errorf("got %v, want %v", got, all)
				}
				if why := r.health.missing[r.machine.GPUs()[lost[0]].UUID]; why == nil {
					t.Error("Health does not know it")
				}
				_, err := r.preparer.Prepare(t.Context(), fixture.Claim("c", fixture.Result("r", device)))
				fixture.Sentence(t, err, "device "+device+" is not on this node", "if its GPU was lost, repair it")
				fixture.Sentence(t, errorOf(r.warned()), ReasonUnreadable, "reset or replace it")
				must(t, r.machine.Return(lost[0]))
				after(rereads.Cap)
				if got := r.offered(); !slices.Equal(got, all) {
					t.Errorf("got %v after the GPU was back, want %v", got, all)
				}
				if got := r.tainted(device); len(got) > 0 {
					t.Errorf("%s is back and has the taints %v", device, got)
				}
			})
		})
	}
}

// A GPU that does not answer is tainted, and claims for it fail at once.
func TestAGPUThatDoesNotAnswerGetsNoClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "p5.48xlarge", nothing)
		all := r.offered()
		r.silence(&r.node.GPUs[3])
		after(2 * lookInterval)
		for name, want := range map[string][]string{
			"gpu-3": {"mica.gpu/unresponsive=:NoSchedule"}, "gpu-3-mig-1g10gb-19-0": {"mica.gpu/unresponsive=:NoSchedule"}, "gpu-4": nil,
		} {
			if got := r.tainted(name); !slices.Equal(got, want) {
				t.Errorf("%s has the taints %v, want %v", name, got, want)
			}
		}
		if why := r.health.missing[r.node.GPUs[3].UUID]; !errors.Is(why, nvml.ErrSilent) {
			t.Errorf("Health knows %v", why)
		}
		_, err := r.preparer.Prepare(t.Context(), fixture.Claim("c", fixture.Result("r", "gpu-3")))
		fixture.Sentence(t, err, "device gpu-3 is not on this node")
		_, err = r.preparer.Prepare(t.Context(), fixture.Claim("d", fixture.Result("r", "gpu-4")))
		must(t, err)
		r.silence(nil)
		after(rereads.Cap)
		if got := r.tainted("gpu-3"); len(got) > 0 || !slices.Equal(r.offered(), all) {
			t.Errorf("it answers again and has the taints %v", got)
		}
	})
}

// A GPU that only does not answer evicts no pods, because the driver may answer about none.
func TestAGPUThatDoesNotAnswerEvictsNothing(t *testing.T) {
	r := newRig(t, "g5.12xlarge")
	effects := slice.FaultEffects{health.Unresponsive: resourceapi.DeviceTaintEffectNoExecute, health.Lost: resourceapi.DeviceTaintEffectNoExecute}
	for want, why := range map[string]error{
		"mica.gpu/unresponsive=:NoSchedule":  &nvml.UnreadableError{Err: nvml.ErrSilent},
		"gpu.nvidia.com/gpu-lost=:NoExecute": &nvml.UnreadableError{Err: nvml.ErrGPULost},
	} {
		o := &Offer{Options: Options{Health: &r.health}, faults: effects, missing: []missingGPU{{gpu.GPU{UUID: "GPU-0"}, why}}}
		next := desired{shapes: []gpu.Shape{gpu.Whole{GPU: gpu.GPU{UUID: "GPU-0"}}}, taints: slice.Taints{}}
		o.taint(next, nil)
		for _, taint := range next.taints[next.shapes[0].Name()] {
			if got := fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		}
		if len(next.taints) != 1 {
			t.Errorf("got %v, want %s", next.taints, want)
		}
	}
}

// A fault of a partition is one of what overlaps it, and one of the GPU of all its shapes; no
// other GPU has it.
func TestFaultsTaintWhatTheyHit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := live(t, "p5.48xlarge", nothing)
		uuid, other := r.machine.GPUs()[0].UUID, "gpu-1"
		expect := func(name string, taints ...string) {
			t.Helper()
			if got := r.tainted(name); !slices.Equal(got, taints) {
				t.Errorf("%s has the taints %v, want %v", name, got, taints)
			}
		}
		change := func(faults ...health.Fault) {
			r.health.set(uuid, faults...)
			r.Reconsider()
			synctest.Wait()
		}
		const first, last = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-6"
		change(health.Fault{Condition: health.XID, Value: "95", Severity: health.Drain, Place: gpu.Placement{Start: 0, Size: 1}})
		expect(first, "gpu.nvidia.com/xid=95:NoSchedule")
		expect(last)
		expect("gpu-0", "gpu.nvidia.com/xid=95:NoSchedule")
		expect(other)
		change(health.Fault{Condition: health.Memory, Value: "row-remap-pending", Severity: health.Degraded})
		expect(first, "mica.gpu/memory=row-remap-pending:None")
		expect(last, "mica.gpu/memory=row-remap-pending:None")
		expect("gpu-0", "mica.gpu/memory=row-remap-pending:None")
		expect(other)
		change()
		expect(first)
		expect("gpu-0")
	})
}

// A process that starts while a GPU cannot be read publishes it as the one before did.
func TestALostGPUStaysAfterARestart(t *testing.T) {
	before := newRig(t, "g5.12xlarge")
	before.live = true
	_, err := before.start(t)
	must(t, err)
	r := newRig(t, "g5.12xlarge")
	r.live, r.health.seen = true, before.health.seen
	must(t, r.machine.Lose(1))
	_, err = r.start(t)
	must(t, err)
	if got := r.tainted("gpu-1"); !slices.Equal(got, []string{"gpu.nvidia.com/gpu-lost=:NoSchedule"}) || !slices.Equal(r.offered(), before.offered()) {
		t.Errorf("got %v with the taints %v, want %v", r.offered(), got, before.offered())
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
