package keda

import (
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/test/fixture"
)

// warmed is a target with two serving pods and one standby.
func warmed(w *world) {
	w.gated = true
	w.pods = []workload.Pod{pod("a", gate(workload.Open)), pod("b", gate(workload.Open)), pod("c", gate(workload.Standby))}
}

func gate(g workload.Gate) func(*workload.Pod) {
	return func(p *workload.Pod) { p.Gate, p.Ready = g, g == workload.Open }
}

// KEDA gets the load plus the standbys. Gates open by the load alone.
func TestStandbysAreAddedToTheLoad(t *testing.T) {
	for _, test := range []struct {
		name    string
		trigger map[string]string
		waiting float64
		value   float64
		serves  string
	}{
		{"no load", with(queryTrigger, "warm", "1"), 0, 10, "2"},
		{"what serves is enough", with(queryTrigger, "warm", "1"), 20, 30, "2"},
		{"one more is to serve at once", with(queryTrigger, "warm", "1"), 25, 35, "3"},
		{"several standbys", with(queryTrigger, "warm", "2"), 25, 45, "3"},
		{"no standbys", queryTrigger, 5, 5, "3"},
		{"what holds opens none", with(queryTrigger, "warm", "1", "role", "hold"), 90, 30, "2"},
		{"what activates opens", with(queryTrigger, "warm", "1", "activationThreshold", "30"), 25, 35, "2"},
		{"claims that wait open none", with(pendingTrigger, "warm", "1", "workload", "-", "target", "Deployment/vllm"), 0, 1, "2"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			warmed(w)
			w.answers["sum(waiting)"] = test.waiting
			w.settle(t, test.trigger)
			if got, err := w.metrics(t, test.trigger); err != nil || got != test.value {
				t.Errorf("value %v, %v, want %v", got, err, test.value)
			}
			if want := []string{"Deployment/vllm: " + test.serves + " by ScaledObject llm"}; !slices.Equal(w.opened, want) {
				t.Errorf("serving: %q, want %q", w.opened, want)
			}
			if active, err := w.scaler.Active(t.Context(), scaledObject(test.trigger)); err != nil || active != (test.value > 0) {
				t.Errorf("active: %t, %v", active, err)
			}
		})
	}
}

// settle asks for the trigger until all triggers of the ScaledObject are known.
func (w *world) settle(t *testing.T, trigger map[string]string) {
	t.Helper()
	if _, err := w.metrics(t, trigger); err != nil {
		t.Fatal(err)
	}
	w.clock.Step(firstRound)
	w.opened = nil
}

// An open gate stays open, so a trigger without standbys must not open the gates of other triggers' standbys.
func TestATriggerWithoutWarmOpensNoStandbysOfOthers(t *testing.T) {
	w := newWorld()
	warmed(w)
	w.answers["sum(waiting)"] = 5
	serving := func(trigger map[string]string) string {
		t.Helper()
		w.opened = nil
		if _, err := w.metrics(t, trigger); err != nil || len(w.opened) != 1 {
			t.Fatalf("opened %q, %v", w.opened, err)
		}
		return w.opened[0]
	}
	standbys := with(queryTrigger, "warm", "1")
	for _, step := range []struct {
		what    string
		trigger map[string]string
		after   time.Duration
		want    string
	}{
		{"first, before the one with standbys", queryTrigger, 0, "1"},
		{"the one with standbys", standbys, time.Second, "2"},
		{"beside it", queryTrigger, time.Minute, "2"},
		{"it again", standbys, 4 * time.Minute, "2"},
		{"while it is still there", queryTrigger, 4 * time.Minute, "2"},
		{"when it has just gone", queryTrigger, 2 * time.Minute, "1"},
		{"when it has gone for good", queryTrigger, time.Minute, "3"},
	} {
		w.clock.Step(step.after)
		if got, want := serving(step.trigger), "Deployment/vllm: "+step.want+" by ScaledObject llm"; got != want {
			t.Errorf("%s: serving %s, want %s", step.what, got, want)
		}
	}
}

// While the load is unknown, the replicas that KEDA asked for serve.
func TestGatesDoNotWaitForMetrics(t *testing.T) {
	w := newWorld()
	warmed(w)
	w.queryErr = errors.New("prometheus is down")
	if _, err := w.metrics(t, with(queryTrigger, "warm", "1")); err == nil {
		t.Error("there is a value without Prometheus")
	}
	if want := []string{"Deployment/vllm: 2 by ScaledObject llm"}; !slices.Equal(w.opened, want) {
		t.Errorf("serving: %q, want %q", w.opened, want)
	}
}

func TestATargetWithoutGatesHasNoStandbys(t *testing.T) {
	w := newWorld()
	w.pods = pods(2)
	for _, warm := range []string{"1", "2"} {
		_, err := w.metrics(t, with(queryTrigger, "warm", warm))
		fixture.Sentence(t, err, "warm "+warm, "Deployment/vllm", "add the conditionType mica.gpu/serving to readinessGates", "leave warm out")
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("warm %s: the code is %s", warm, status.Code(err))
		}
	}
	if _, err := w.metrics(t, queryTrigger); err != nil || len(w.opened) > 0 {
		t.Errorf("without the key: %v, opened %q", err, w.opened)
	}
}

// Standbys are capped like other replicas.
func TestStandbysNeedDevices(t *testing.T) {
	w := newWorld()
	warmed(w)
	w.answers["sum(waiting)"] = 30
	w.supplies[vllm] = scaleout.Supply{}
	if got, err := w.metrics(t, with(queryTrigger, "warm", "2")); err != nil || got != 30 {
		t.Errorf("value %v, %v, want that of the 3 pods that there are", got, err)
	}
}

// A standby holds devices and the memory of its model, and is not in use.
func TestStandbysAreInNoMean(t *testing.T) {
	w := newWorld()
	warmed(w)
	w.usage = usage.Usage{Utilization: usage.Mean{Value: 0.5}, Memory: usage.Mean{Value: 0.9}, Devices: 2}
	if got, err := w.metrics(t, memoryTrigger); err != nil || got != 180 {
		t.Errorf("value %v, %v, want 180: of two", got, err)
	}
	w.pods, w.usageErr = []workload.Pod{pod("c", gate(workload.Standby))}, errors.New("asked")
	if got, err := w.metrics(t, busyTrigger); err != nil || got != 0 {
		t.Errorf("value %v, %v of a standby alone", got, err)
	}
}
