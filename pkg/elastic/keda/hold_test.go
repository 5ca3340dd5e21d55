package keda

import (
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/scaledobject"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// demand is a model's load: concurrent answers, which keep the devices of one replica busy each, and waiting
// requests.
type demand struct{ answers, waiting float64 }

// rehearsal scales a simulated workload by the ScaledObject that is printed for a profile.
type rehearsal struct {
	*world
	object scaledobject.ScaledObject
	hpa    *autoscaler
}

func rehearse(t *testing.T, name string, replicas int, change ...func(*scaledobject.Options)) *rehearsal {
	t.Helper()
	profiles, err := profile.NewSource("", clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	set, err := profile.Load(nil)
	if err != nil {
		t.Fatal(err)
	}
	options := scaledobject.Options{
		Target:     workload.Ref{Kind: "Deployment", Name: "vllm"},
		Profiles:   set,
		Profile:    name,
		Min:        1,
		Max:        16,
		Serving:    scaledobject.Serving{Engine: "vllm", Model: "llm"},
		Prometheus: scaledobject.Prometheus{Address: "http://prometheus:9090"},
		Scaler:     scaledobject.Scaler{Address: "mica:9443"},
	}
	for _, c := range change {
		c(&options)
	}
	objects, err := scaledobject.Build(options)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld()
	w.pods = pods(replicas)
	w.supplies[vllm] = scaleout.Supply{Free: 100}
	w.scaler.Profiles = profiles
	spec := objects.ScaledObject.Spec
	return &rehearsal{w, objects.ScaledObject, &autoscaler{
		min: spec.MinReplicaCount, max: spec.MaxReplicaCount, behavior: spec.Advanced.HorizontalPodAutoscalerConfig.Behavior,
	}}
}

// run applies the demand for a time, and returns the replicas after each sync of the autoscaler.
func (r *rehearsal) run(t *testing.T, d demand, lasting time.Duration) []int {
	t.Helper()
	var history []int
	for range int(lasting / syncPeriod) {
		r.clock.Step(syncPeriod)
		r.set(d)
		readings := r.readings(t, d)
		next := r.hpa.look(r.clock.Now(), int32(len(r.pods)), readings)
		r.pods = pods(int(next))
		history = append(history, int(next))
	}
	return history
}

// set spreads the demand over the replicas: an answer makes a GPU busy and fills little of its cache.
// Requests wait for seconds.
func (r *rehearsal) set(d demand) {
	n := float64(len(r.pods))
	r.usage = usage.Usage{Utilization: usage.Mean{Value: min(d.answers/n, 1)}, Devices: len(r.pods)}
	for _, trigger := range r.object.Spec.Triggers {
		query := trigger.Metadata["query"]
		switch {
		case strings.Contains(query, "num_requests_waiting"):
			r.answers[query] = d.waiting
		case strings.Contains(query, "kv_cache"):
			r.answers[query] = min(100, 5*d.answers/n)
		default:
			r.answers[query] = d.waiting / n / 10
		}
	}
}

// readings returns one reading per trigger or, with a formula, one for all.
func (r *rehearsal) readings(t *testing.T, d demand) []reading {
	t.Helper()
	var all []reading
	values := map[string]float64{}
	for _, trigger := range r.object.Spec.Triggers {
		one := reading{r.load(d), 1}
		if trigger.Type != "prometheus" {
			one = r.read(t, trigger.Metadata)
		}
		all = append(all, one)
		values[trigger.Name] = one.total / one.target
	}
	switch modifiers := r.object.Spec.Advanced.ScalingModifiers; {
	case modifiers == nil:
		return all
	case modifiers.Formula != "min([max([load, held ?? 0]), possible ?? 16])" || modifiers.Target != "1":
		t.Fatalf("the triggers are combined by %v", modifiers)
	}
	return []reading{{min(max(values["load"], values["held"]), values["possible"]), 1}}
}

// load is the result of the printed query: the most replicas that a signal asks for.
func (r *rehearsal) load(d demand) float64 {
	n := float64(len(r.pods))
	return max(d.waiting/10, min(100, 5*d.answers/n)*n/80, d.waiting/n/10*n/2)
}

// read reads a trigger as KEDA and the autoscaler do.
func (r *rehearsal) read(t *testing.T, metadata map[string]string) reading {
	t.Helper()
	ref := &externalscaler.ScaledObjectRef{Namespace: "default", Name: "vllm", ScalerMetadata: metadata}
	spec, err := r.world.scaler.Spec(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	values, err := r.world.scaler.Metrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: ref, MetricName: spec.MetricSpecs[0].MetricName})
	if err != nil {
		t.Fatal(err)
	}
	return reading{values.MetricValues[0].MetricValueFloat, spec.MetricSpecs[0].TargetSizeFloat}
}

// scaled are profiles with signals of load.
var scaled = []string{"realtime", "conversational"}

// One long answer after the other makes a GPU 100 % busy, and needs no second GPU.
func TestABusyModelStaysAtItsReplicas(t *testing.T) {
	for _, name := range scaled {
		for replicas, want := range map[int]int{1: 1, 3: 3} {
			r := rehearse(t, name, replicas)
			for i, got := range r.run(t, demand{answers: float64(replicas)}, time.Hour) {
				if got != want {
					t.Fatalf("%s: %d busy replicas are %d after %s", name, replicas, got, time.Duration(i+1)*syncPeriod)
				}
			}
		}
	}
}

func TestAQueueAsksForReplicasAndUtilizationLetsThemGo(t *testing.T) {
	for _, name := range scaled {
		r := rehearse(t, name, 1)
		grown := r.run(t, demand{answers: 1, waiting: 75}, 5*time.Minute)
		if got := grown[len(grown)-1]; got != 8 {
			t.Errorf("%s: 75 requests that wait have %d replicas, want 8: %v", name, got, grown)
		}
		// Busy with what they have: none goes, though no request waits.
		held := r.run(t, demand{answers: 8}, time.Hour)
		if got := held[len(held)-1]; got != 8 {
			t.Errorf("%s: of 8 busy replicas are %d left", name, got)
		}
		shrunk := r.run(t, demand{}, time.Hour)
		r.expectSlow(t, name, shrunk)
		if got := shrunk[len(shrunk)-1]; got != 1 {
			t.Errorf("%s: an idle model has %d replicas after an hour", name, got)
		}
	}
}

// expectSlow checks the promise of the profiles: no replica goes for 5 minutes, and then one per minute.
func (r *rehearsal) expectSlow(t *testing.T, name string, history []int) {
	t.Helper()
	const perMinute = int(time.Minute / syncPeriod)
	for i, got := range history {
		if i < 5*perMinute-1 && got != history[0] {
			t.Fatalf("%s: a replica has gone after %s", name, time.Duration(i+1)*syncPeriod)
		}
		if i >= perMinute && history[i-perMinute]-got > 1 {
			t.Fatalf("%s: %d replicas have gone within a minute: %v", name, history[i-perMinute]-got, history)
		}
	}
}

// Without another signal, busy devices are the load.
func TestUtilizationAsksWhereItIsTheOnlySignal(t *testing.T) {
	r := rehearse(t, "batch", 1)
	grown := r.run(t, demand{answers: 4}, 10*time.Minute)
	if got := grown[len(grown)-1]; got != 5 {
		t.Errorf("work for four GPUs has %d replicas, want the 5 that are 80 %% busy: %v", got, grown)
	}
}

// A rollout has more pods than replicas.
func TestAHoldKeepsTheDesiredReplicas(t *testing.T) {
	w := newWorld()
	w.pods, w.usage = pods(5), usage.Usage{Utilization: usage.Mean{Value: 1}, Devices: 5}
	three := int32(3)
	w.wanted = &three
	for role, want := range map[string]float64{"hold": 210, "demand": 500} {
		if got, err := w.metrics(t, with(busyTrigger, "role", role)); err != nil || got != want {
			t.Errorf("%s: value %v, %v, want %v", role, got, err, want)
		}
	}
}
