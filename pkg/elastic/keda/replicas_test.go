package keda

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

var (
	heldTrigger     = map[string]string{"metric": "heldReplicas", "target": "Deployment/vllm", "profile": "realtime"}
	possibleTrigger = map[string]string{"metric": "possibleReplicas", "target": "Deployment/vllm"}
)

// A formula combines these with metrics of KEDA, so they count replicas.
func TestReplicasForAFormula(t *testing.T) {
	busy := func(part float64) func(*world) {
		return func(w *world) {
			w.pods, w.usage = pods(4), usage.Usage{Utilization: usage.Mean{Value: part}, Devices: 4}
		}
	}
	for name, test := range map[string]struct {
		trigger map[string]string
		world   func(*world)
		want    float64
	}{
		"no replica is held":                {heldTrigger, func(*world) {}, 0},
		"as many as the use needs are held": {heldTrigger, busy(0.35), 2},
		"no more than there are are held":   {heldTrigger, busy(1), 4},
		"one that waits is held": {heldTrigger, func(w *world) {
			w.pods = []workload.Pod{pod("a", waiting)}
		}, 1},
		"one that loads is held": {heldTrigger, func(w *world) {
			w.pods = []workload.Pod{pod("a", loadingFor(time.Minute))}
			w.usage = usage.Usage{Devices: 1}
		}, 1},
		"one that does not end loading is not": {heldTrigger, func(w *world) {
			w.pods = []workload.Pod{pod("a", loadingFor(time.Hour))}
			w.usage = usage.Usage{Devices: 1}
		}, 0},
		"without signals of devices only what arrives is held": {with(heldTrigger, "profile", "batch"), busy(1), 0},
		"what runs and what there is room for is possible": {possibleTrigger, func(w *world) {
			w.pods, w.supplies[vllm] = pods(3), scaleout.Supply{Free: 2, Provisionable: 4}
		}, 9},
		"nothing is possible":           {possibleTrigger, func(w *world) { w.supplies[vllm] = scaleout.Supply{Why: atMaximum} }, 0},
		"without claims nothing limits": {possibleTrigger, func(w *world) { w.noClaims = true }, math.MaxInt32},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			p := w.profiles["realtime"]
			p.Triggers = []string{profile.KVCache, profile.GPUUtilization}
			w.profiles["realtime"] = p
			test.world(w)
			if got, err := w.metrics(t, test.trigger); err != nil || math.Abs(got-test.want) > 1e-9 {
				t.Errorf("%v, %v, want %v", got, err, test.want)
			}
			if events := w.events(); len(events) != 0 {
				t.Errorf("told %q", events)
			}
		})
	}
}

// An error of a guard would freeze the workload just when capacity is lost.
func TestAGuardThatKnowsNothingLetsTheLoadDecide(t *testing.T) {
	silent := errors.New("the plugin of node-1 is away")
	partition := usage.Usage{Utilization: usage.Mean{Err: fmt.Errorf("device gpu-0 %w its utilization", usage.ErrNotReported)}, Devices: 3}
	spread := scaleout.Supply{Problem: "a topology spread constraint with DoNotSchedule"}
	holds := map[string]string{"metric": "gpuUtilization", "target": "Deployment/vllm", "profile": "realtime", "role": "hold"}
	for name, test := range map[string]struct {
		trigger map[string]string
		world   func(*world)
		want    float64
		event   string
	}{
		"a silent plugin":                     {heldTrigger, func(w *world) { w.usageErr = silent }, 3, "Warning HoldsAllReplicas ScaledObject llm keeps all replicas of Deployment/vllm until"},
		"partitions that tell no utilization": {heldTrigger, func(w *world) { w.usage = partition }, 0, "Warning UsageNotReported ScaledObject llm keeps no replicas of Deployment/vllm"},
		"one of several signals": {with(heldTrigger, "profile", "batch"), func(w *world) {
			w.usage = partition
			w.usage.Memory.Value = 0.5
		}, 2, "Warning UsageNotReported"},
		"a silent plugin of a trigger that holds": {holds, func(w *world) { w.usageErr = silent }, 3 * 70, "Warning HoldsAllReplicas"},
		"partitions of a trigger that holds":      {holds, func(w *world) { w.usage = partition }, 0, "Warning UsageNotReported"},
		"a spread":                                {possibleTrigger, func(w *world) { w.supplies[vllm] = spread }, math.MaxInt32, "Warning ScaleUncapped ScaledObject llm scales Deployment/vllm without regard to how many devices there are: nothing can be planned with it: a topology spread"},
		"a spread of a trigger that asks":         {queryTrigger, func(w *world) { w.supplies[vllm] = spread }, 90, "Warning ScaleUncapped"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			p := w.profiles["realtime"]
			p.Triggers = []string{profile.GPUUtilization}
			w.profiles["realtime"] = p
			w.profiles["batch"] = profile.Profile{
				Name: "batch", Triggers: []string{profile.GPUUtilization, profile.GPUMemory},
				Targets: map[string]float64{profile.GPUUtilization: 70, profile.GPUMemory: 75},
			}
			w.pods, w.answers["sum(waiting)"] = pods(3), 90
			test.world(w)
			for range 20 {
				w.clock.Step(time.Minute)
				if got, err := w.metrics(t, test.trigger); err != nil || got != test.want {
					t.Fatalf("%v, %v, want %v", got, err, test.want)
				}
			}
			if events := w.events(); len(events) != 1 || !strings.HasPrefix(events[0], test.event) {
				t.Errorf("told %q, want once %s", events, test.event)
			}
		})
	}
}

// A late plan may still come: KEDA asks again.
func TestAPlanThatIsNotThereYetIsAnError(t *testing.T) {
	w := newWorld()
	w.pods, w.supplyErr = pods(1), errors.New("there is no plan")
	if got, err := w.metrics(t, possibleTrigger); err == nil {
		t.Errorf("possibleReplicas is %v", got)
	}
}

// KEDA uses a stream for activation only.
func TestAStreamLooksOnlyWhileThereIsNoReplica(t *testing.T) {
	w := newWorld()
	w.answers["sum(waiting)"] = 1
	s := watchActive(t, w, queryTrigger)
	if !s.next(t) {
		t.Fatal("the load is not told")
	}
	w.change(func() { w.pods = pods(1) })
	w.look(t, s) // may have begun before the change
	before := w.count(&w.queried)
	for range 3 {
		w.look(t, s)
	}
	if asked := w.count(&w.queried) - before; asked != 0 {
		t.Errorf("Prometheus was asked %d times for a target that has replicas", asked)
	}
	w.change(func() { w.pods = nil })
	w.poll(t)
	if !s.next(t) {
		t.Error("the load is not told again, though KEDA has taken the last replica away")
	}
}

func (w *world) count(n *int) (now int) {
	w.change(func() { now = *n })
	return now
}

// look waits until the stream has read the target after this call.
func (w *world) look(t *testing.T, s stream[bool]) {
	t.Helper()
	deadline := time.Now().Add(long)
	for before := w.count(&w.looked); w.count(&w.looked) < before+2; {
		w.poll(t)
		select {
		case <-s.sent: // from before the change
		case <-time.After(time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("the stream does not look")
		}
	}
}
