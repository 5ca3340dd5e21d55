package prepare

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func retraining(t *testing.T, lasts time.Duration) *migRig {
	t.Helper()
	return newMIGRigWith(t, 2, model.Habits{MIGRetrain: metav1.Duration{Duration: lasts}})
}

// linked are what another client of NVML sees of the first GPU.
func (r *migRig) linked(t *testing.T) (gpu.FabricState, bool) {
	t.Helper()
	node, _, err := fixture.Library(t, r.machine).Discover()
	must(t, err)
	return node.GPUs[0].Fabric, node.GPUs[0].NVLinkGroup != nil
}

// CUDA does not start on a GPU that is not in the fabric, and its peers are not reached.
func TestAWholeGPUWaitsForItsLinksAfterPartitions(t *testing.T) {
	for name, before := range map[string]func(*testing.T, *migRig, *Preparer){
		"MIG is disabled with the last partition": func(t *testing.T, r *migRig, p *Preparer) {
			part := r.allocated("part", small0)
			prepare(t, p, part)
			unprepare(t, p, part)
		},
		"MIG is disabled for the claim": func(t *testing.T, r *migRig, _ *Preparer) { must(t, r.machine.SetMIGMode(0, true)) },
	} {
		t.Run(name, func(t *testing.T) {
			r := retraining(t, 300*time.Millisecond)
			p := r.startMIG(t, nil)
			before(t, r, p)
			prepare(t, p, r.allocated("whole", whole0))
			if fabric, linked := r.linked(t); fabric != gpu.FabricReady || !linked {
				t.Errorf("the claim was given a GPU whose state in the fabric is %q; linked: %t", fabric, linked)
			}
		})
	}
}

// A pod says what it waits for, and nothing stays of the attempt.
func TestAWholeGPUWhoseLinksDoNotComeBack(t *testing.T) {
	r := retraining(t, time.Hour)
	p := r.startMIG(t, nil)
	part, whole := r.allocated("part", small0), r.allocated("whole", whole0)
	prepare(t, p, part)
	unprepare(t, p, part)
	for range 2 {
		ctx, cancel := context.WithTimeout(testContext(t), 200*time.Millisecond)
		_, err := p.Prepare(ctx, whole)
		cancel()
		fixture.Sentence(t, err, "claim default/whole", r.uuid(0), "InProgress", "fabric manager", "kubelet tries again")
	}
	r.expectMIG(t, p, nil)
	other := r.allocated("other", "gpu-1")
	prepare(t, p, other) // only the GPU that was switched waits
	prepare(t, p, part)  // partitions need no links
}
