package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// stormRate is how many events come per second.
const stormRate = 1000

// ward is a driver on a node whose GPUs are cut in seven, each partition for a claim.
type ward struct {
	testing.TB
	api    *apiserver.Server
	h      *hardware
	d      *Driver
	k      kubelet
	claims []*resourceapi.ResourceClaim
}

func newWard(t testing.TB) *ward {
	t.Helper()
	w := &ward{TB: t, h: newHardware(t)}
	var objects []runtime.Object
	for board := range 8 {
		for place := range 7 {
			claim := fixture.Claim(fmt.Sprintf("claim-%d-%d", board, place), fixture.Result("a", fmt.Sprintf("gpu-%d-mig-1g10gb-19-%d", board, place)))
			w.claims, objects = append(w.claims, claim), append(objects, claim)
		}
	}
	w.api = apiserver.New(objects...)
	o := options(t, w.api, w.h)
	w.d, w.k, _ = serving(t, o)
	return w
}

// storm reports XIDs of the GPUs in turn until ctx ends.
func (w *ward) storm(ctx context.Context, gpus ...int) {
	tick := time.NewTicker(time.Second / stormRate)
	defer tick.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		if err := w.h.machine.Inject(model.XID(gpus[i%len(gpus)], uint64(109+i%20))); err != nil {
			w.Error(err)
			return
		}
		<-tick.C
	}
}

// updates are how often a slice was written since the node has slices.
func (w *ward) updates() (count int) {
	for _, action := range w.api.Actions() {
		if action.GetResource().Resource == "resourceslices" && action.GetVerb() == "update" {
			count++
		}
	}
	return count
}

// asked are the calls of NVML, but those that wait for events.
func (w *ward) asked() model.Calls {
	w.Helper()
	state, err := w.h.machine.State()
	must(w, err)
	calls := maps.Clone(state.Calls)
	delete(calls, "nvmlEventSetWait_v2")
	return calls
}

func (w *ward) tainted(device string) bool {
	for _, s := range w.api.Slices(w) {
		for _, d := range s.Spec.Devices {
			if d.Name == device {
				return len(d.Taints) > 0
			}
		}
	}
	return false
}

// A storm of one GPU's events costs two writes of slices and few calls of NVML, and claims of other
// GPUs are prepared meanwhile.
func TestAStormOfOneGPU(t *testing.T) {
	w := newWard(t)
	must(t, w.h.machine.SetCondition(7, model.Condition{RecoveryAction: "gpu-reset"}))
	before := w.asked()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.storm(ctx, 7)
	}()
	fixture.Eventually(t, "the taint of all that is on the GPU", func() error {
		for _, device := range []string{"gpu-7", "gpu-7-mig-1g10gb-19-6"} {
			if !w.tainted(device) {
				return fmt.Errorf("%s has none", device)
			}
		}
		return nil
	})
	<-over
	if got := w.updates(); got > 2 {
		t.Errorf("%d slices were written, want 2", got)
	}
	calls := w.asked().Since(before)
	if total := calls.Total(); total > 100 {
		t.Errorf("it took %d calls of NVML: %v", total, calls)
	}
}

// Claims are prepared while the GPUs' health changes and kubelet gets reports of it.
func TestClaimsArePreparedInAStorm(t *testing.T) {
	w := newWard(t)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		w.storm(ctx, 0, 1, 2, 3, 4, 5, 6, 7)
	}()
	prepared := make(chan string)
	for claims := range slices.Chunk(w.claims[:28], 7) {
		go func() {
			for _, answer := range w.k.prepare(claims...) {
				prepared <- answer.GetError()
			}
		}()
	}
	for range 28 {
		if words := <-prepared; words != "" {
			t.Error(words)
		}
		w.d.healthReport()
	}
	cancel()
	<-over
}

// BenchmarkAStorm is what the plugin takes of a core while each GPU of a full node reports errors,
// with what the simulator takes in the same process.
func BenchmarkAStorm(b *testing.B) {
	w := newWard(b)
	for _, verb := range []string{"create", "patch"} {
		// client-go's fake builds a mapper of all kinds for each.
		w.api.PrependReactor(verb, "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, &corev1.Event{}, nil })
	}
	for claims := range slices.Chunk(w.claims, 7) {
		for _, answer := range w.k.prepare(claims...) {
			if words := answer.GetError(); words != "" {
				b.Fatal(words)
			}
		}
	}
	for index := range 8 {
		must(b, w.h.machine.SetCondition(index, model.Condition{RecoveryAction: "gpu-reset"}))
	}
	var used, passed time.Duration
	for b.Loop() {
		began, before := time.Now(), processorTime(b)
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		w.storm(ctx, 0, 1, 2, 3, 4, 5, 6, 7)
		cancel()
		used += processorTime(b) - before
		passed += time.Since(began)
	}
	b.ReportMetric(100*float64(used)/float64(passed), "%core")
}

// processorTime is what this process has had.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
