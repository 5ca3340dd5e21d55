package keda

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

const atMaximum = "group h100 is at its maximum of 2 nodes"

func TestNoMoreReplicasAreAskedForThanCanHaveDevices(t *testing.T) {
	for _, test := range []struct {
		name   string
		load   float64
		world  func(*world)
		value  float64
		active bool
		event  string
	}{
		{"there is room", 500, func(w *world) { w.supplies[vllm] = scaleout.Supply{Free: 20, Coming: 10, Provisionable: 20} }, 500, true, ""},
		{"there is room for fewer", 500, func(w *world) {
			w.supplies[vllm] = scaleout.Supply{Free: 1, Coming: 3, Provisionable: 4, Why: atMaximum}
		}, 80, true,
			"Warning ScaleCapped ScaledObject llm asks by metric prometheus for 50 replicas of Deployment/vllm; there are, or can be, devices for 8: " + atMaximum},
		{"those that run count", 500, func(w *world) { w.pods = pods(3); w.supplies[vllm] = scaleout.Supply{Provisionable: 5} }, 80, true,
			"Warning ScaleCapped ScaledObject llm asks by metric prometheus for 50 replicas of Deployment/vllm; there are, or can be, devices for 8"},
		{"those that wait for what is planned count", 500, func(w *world) {
			w.pods = append(pods(3), pod("late", waiting), pod("never", waiting))
			w.blocked["never"] = true
			w.supplies[vllm] = scaleout.Supply{Provisionable: 4, Why: atMaximum}
		}, 80, true, "Warning ScaleCapped ScaledObject llm asks by metric prometheus for 50 replicas of Deployment/vllm; there are, or can be, devices for 8: " + atMaximum},
		{"those that came after the plan take of its room", 500, func(w *world) {
			w.pods = append(pods(3), pod("late", waiting), pod("later"))
			w.unknown["late"], w.unknown["later"] = true, true
			w.supplies[vllm] = scaleout.Supply{Free: 5, Why: atMaximum}
		}, 80, true, "Warning ScaleCapped ScaledObject llm asks by metric prometheus for 50 replicas of Deployment/vllm; there are, or can be, devices for 8: " + atMaximum},
		{"nothing can run", 500, func(w *world) { w.supplies[vllm] = scaleout.Supply{Why: atMaximum} }, 0, false,
			"Warning ScaleCapped ScaledObject llm asks by metric prometheus for 50 replicas of Deployment/vllm; there are, or can be, devices for 0: " + atMaximum},
		{"nothing more can run", 500, func(w *world) { w.pods = pods(2); w.supplies[vllm] = scaleout.Supply{Why: atMaximum} }, 20, true,
			"Warning ScaleCapped ScaledObject llm asks by metric prometheus for 50 replicas of Deployment/vllm; there are, or can be, devices for 2: " + atMaximum},
		{"what runs is enough, and no plan is needed", 19, func(w *world) { w.pods = pods(2); w.supplyErr = fmt.Errorf("the loop is broken") }, 19, true, ""},
		{"nothing is wanted, and no plan is needed", 0, func(w *world) { w.supplyErr = fmt.Errorf("the loop is broken") }, 0, false, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			w.answers["sum(waiting)"] = test.load
			test.world(w)
			value, err := w.metrics(t, queryTrigger)
			if err != nil || value != test.value {
				t.Errorf("value %v, %v, want %v", value, err, test.value)
			}
			active, err := w.scaler.Active(t.Context(), scaledObject(queryTrigger))
			if err != nil || active != test.active {
				t.Errorf("active %v, %v, want %v", active, err, test.active)
			}
			if got := strings.Join(w.events(), "\n"); got != test.event {
				t.Errorf("told %q, want %q", got, test.event)
			}
			if w.asked[vllm] == 0 {
				t.Error("the plan was not asked, and does not have the answer when the load rises")
			}
		})
	}
}

// A cap below the activation threshold does not deactivate the target.
func TestACapDoesNotMakeALoadIdle(t *testing.T) {
	w := newWorld()
	w.answers["sum(waiting)"] = 100
	w.supplies[vllm] = scaleout.Supply{Free: 1}
	active, err := w.scaler.Active(t.Context(), scaledObject(with(queryTrigger, "activationThreshold", "50")))
	if err != nil || !active {
		t.Errorf("active %v, %v", active, err)
	}
}

// Pods such as a gateway's may run on node groups that Mica does not know.
func TestPodsWithoutDevicesAreNotCapped(t *testing.T) {
	w := newWorld()
	w.noClaims = true
	w.answers["sum(waiting)"] = 500
	w.supplies[vllm] = scaleout.Supply{Free: 8}
	if value, err := w.metrics(t, queryTrigger); err != nil || value != 500 || len(w.events()) > 0 {
		t.Errorf("value %v, %v", value, err)
	}
	if len(w.asked) > 0 {
		t.Error("the plan was asked for room for pods that claim nothing")
	}
}

// KEDA writes value and threshold with three decimals, and the HPA divides them.
func TestACapIsWholeReplicasToTheHPA(t *testing.T) {
	milli := func(v float64) int64 {
		q := resource.MustParse(fmt.Sprintf("%.3f", v))
		return q.MilliValue()
	}
	for _, threshold := range []string{"0.001", "0.0014", "0.07", "0.3", "1.001", "2.675", "33.3333", "70", "123456789.123"} {
		for _, possible := range []int{1, 3, 7, 8, 49, 1000} {
			w := newWorld()
			w.answers["sum(waiting)"] = 1e15
			w.supplies[vllm] = scaleout.Supply{Free: possible}
			metadata := with(queryTrigger, "threshold", threshold)
			value, err := w.metrics(t, metadata)
			if err != nil {
				t.Fatal(err)
			}
			spec, _ := w.scaler.Spec(t.Context(), scaledObject(metadata))
			got := math.Ceil(float64(milli(value)) / float64(milli(spec.MetricSpecs[0].TargetSizeFloat)))
			if int(got) != possible {
				t.Errorf("with threshold %s the HPA makes %v replicas of a cap of %d", threshold, got, possible)
			}
		}
	}
}

func TestACapHasOneEvent(t *testing.T) {
	w := newWorld()
	ask := func(load float64) []string {
		t.Helper()
		w.answers["sum(waiting)"] = load
		if _, err := w.metrics(t, queryTrigger); err != nil {
			t.Fatal(err)
		}
		return w.events()
	}
	capped := func(triggers int) {
		t.Helper()
		if got := testutil.ToFloat64(w.scaler.Collectors()[0]); int(got) != triggers {
			t.Errorf("%v triggers are capped, want %d", got, triggers)
		}
	}
	w.supplies[vllm] = scaleout.Supply{Free: 8, Why: atMaximum}
	if told := ask(500); len(told) != 1 {
		t.Errorf("told %q", told)
	}
	capped(1)
	if told := ask(700); len(told) != 0 {
		t.Errorf("only the load is another, and it was told %q", told)
	}
	// A thousand triggers that share their devices have another cap with each that is taken.
	w.clock.Step(quiet - time.Second)
	w.supplies[vllm] = scaleout.Supply{Free: 10, Why: atMaximum}
	if told := ask(700); len(told) != 0 {
		t.Errorf("told %q so soon", told)
	}
	w.clock.Step(time.Second)
	w.supplies[vllm] = scaleout.Supply{Free: 9, Why: atMaximum}
	if told := ask(700); len(told) != 1 || !strings.Contains(told[0], "for 70 replicas") || !strings.Contains(told[0], "devices for 9") {
		t.Errorf("told %q", told)
	}
	w.clock.Step(quiet)
	w.supplies[vllm] = scaleout.Supply{Free: 9, Why: "group h100 is in backoff"}
	if told := ask(700); len(told) != 1 {
		t.Errorf("the reason is another, and it was told %q", told)
	}
	capped(1)
	if told := ask(90); len(told) != 0 {
		t.Errorf("told %q of a cap that does not bite", told)
	}
	capped(0)
	if told := ask(700); len(told) != 0 {
		t.Errorf("a load about the cap was told %q", told)
	}
	capped(1)
	if told := ask(90); len(told) != 0 {
		t.Errorf("told %q of a cap that does not bite", told)
	}
	w.clock.Step(quiet)
	if told := ask(700); len(told) != 1 {
		t.Errorf("a cap that bites anew was told %q", told)
	}
	capped(1)

	other := with(queryTrigger, "threshold", "1")
	w.clock.Step(forgotten)
	if _, err := w.metrics(t, other); err != nil {
		t.Fatal(err)
	}
	capped(1)
	w.clock.Step(forgotten) // KEDA asks another replica of the controller
	capped(0)
}

// A client chooses how many triggers there are.
func TestRememberedCapsAreBounded(t *testing.T) {
	w := newWorld()
	w.answers["sum(waiting)"] = 100
	w.supplies[vllm] = scaleout.Supply{Why: atMaximum}
	for i := range mostCaps + 10 {
		if value, err := w.metrics(t, with(queryTrigger, "threshold", fmt.Sprint(1+i))); err != nil || value != 0 {
			t.Fatalf("value %v, %v", value, err)
		}
	}
	if n := len(w.scaler.capEvents.caps); n != mostCaps {
		t.Errorf("%d caps are remembered", n)
	}
	if n := len(w.events()); n != mostCaps {
		t.Errorf("told %d times", n)
	}
	w.clock.Step(forgotten)
	if _, err := w.metrics(t, with(queryTrigger, "threshold", "9999")); err != nil || len(w.events()) != 1 {
		t.Errorf("not told when others are gone, %v", err)
	}
}

func TestTheNoteOfACapFitsAnEvent(t *testing.T) {
	w := newWorld()
	w.answers["sum(waiting)"] = 100
	w.supplies[vllm] = scaleout.Supply{Why: strings.Repeat("größer ", 500)}
	if _, err := w.metrics(t, queryTrigger); err != nil {
		t.Fatal(err)
	}
	told := w.events()
	if len(told) != 1 || len(told[0]) > len("Warning ScaleCapped ")+excerpt.MaxEvent || !strings.HasSuffix(told[0], "…") {
		t.Errorf("told %q", told)
	}
}

func TestTriggersOfATargetShareItsReplica(t *testing.T) {
	w := newWorld()
	w.answers["sum(waiting)"] = 100
	for _, metadata := range []map[string]string{queryTrigger, with(queryTrigger, "threshold", "3"), with(queryTrigger, "target", "deploy/vllm")} {
		if _, err := w.metrics(t, metadata); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.asked) != 1 || w.asked[vllm] != 3 {
		t.Errorf("asked %v", w.asked)
	}
}
