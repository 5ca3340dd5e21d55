package keda

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

var began = time.Date(2026, 9, 1, 8, 0, 0, 0, time.UTC)

// world is the state behind all sources. They share its lock, because streams read while tests change it.
type world struct {
	mu        sync.Mutex
	pods      []workload.Pod
	wanted    *int32
	gang      []workload.Member
	gated     bool
	gatedPods int
	supplied  map[string]scaleout.Replica
	opened    []string
	pending   map[string]int
	changes   []chan int
	noClaims  bool
	usage     usage.Usage
	usageErr  error
	supplies  map[string]scaleout.Supply
	asked     map[string]int
	supplyErr error
	blocked   map[types.UID]bool
	unknown   map[types.UID]bool
	answers   map[string]float64
	queryErr  error
	queried   int
	looked    int
	profiles  map[string]profile.Profile
	changed   chan struct{}

	clock    *clocktesting.FakeClock
	recorder *events.FakeRecorder
	scaler   *Scaler
}

const vllm = "default/Deployment/vllm"

func newWorld() *world {
	w := &world{
		pending:  map[string]int{},
		supplies: map[string]scaleout.Supply{vllm: {Free: 100}},
		asked:    map[string]int{},
		supplied: map[string]scaleout.Replica{},
		blocked:  map[types.UID]bool{},
		unknown:  map[types.UID]bool{},
		answers:  map[string]float64{},
		profiles: map[string]profile.Profile{"realtime": {
			Name:       "realtime",
			Targets:    map[string]float64{"gpuUtilization": 70},
			Activation: map[string]float64{"gpuUtilization": 50},
		}, "batch": {Name: "batch"}},
		changed:  make(chan struct{}),
		clock:    clocktesting.NewFakeClock(began),
		recorder: events.NewFakeRecorder(10000),
	}
	w.scaler = NewScaler(ScalerOptions{
		Sources:  Sources{Workloads: workloads{w}, Usages: usages{w}, Forecast: plans{w}, Prometheus: queries{w}},
		Profiles: profiles{w},
		Gates:    gates{w},
		Recorder: w.recorder,
		Clock:    w.clock,
	})
	return w
}

// change changes the world.
func (w *world) change(do func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	do()
}

// events are those written since the last time.
func (w *world) events() []string {
	var all []string
	for len(w.recorder.Events) > 0 {
		all = append(all, <-w.recorder.Events)
	}
	return all
}

func (w *world) metrics(t *testing.T, metadata map[string]string) (float64, error) {
	t.Helper()
	response, err := w.scaler.Metrics(t.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: scaledObject(metadata), MetricName: "asked"})
	if err != nil {
		return 0, err
	}
	if n := len(response.MetricValues); n != 1 || response.MetricValues[0].MetricName != "asked" {
		t.Fatalf("answered %v", response)
	}
	return response.MetricValues[0].MetricValueFloat, nil
}

func scaledObject(metadata map[string]string) *externalscaler.ScaledObjectRef {
	return &externalscaler.ScaledObjectRef{Namespace: "default", Name: "llm", ScalerMetadata: metadata}
}

// pod returns a pod with a device on a node.
func pod(name string, change ...func(*workload.Pod)) workload.Pod {
	p := workload.Pod{UID: types.UID(name), Name: name, Node: "node-1", Ready: true, Devices: []workload.Device{{
		Holding: devices.Holding{ID: devices.ID{Pool: devices.PoolID{Driver: "gpu.nvidia.com", Name: "node-1"}, Name: "gpu-" + name}},
		Claim:   types.UID("claim-" + name), Class: "gpu.nvidia.com",
	}}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func pods(n int) []workload.Pod {
	all := make([]workload.Pod, n)
	for i := range all {
		all[i] = pod(fmt.Sprint("p", i))
	}
	return all
}

func waiting(p *workload.Pod) { p.Node, p.Ready, p.Pending, p.Devices = "", false, 1, nil }

func loadingFor(d time.Duration) func(*workload.Pod) {
	return func(p *workload.Pod) { p.Ready, p.LoadingSince = false, began.Add(-d) }
}

// replicas is the number of pods, unless a test sets another.
func (w *world) replicas() int32 {
	if w.wanted != nil {
		return *w.wanted
	}
	if len(w.gang) > 0 {
		return int32(len(w.pods) / len(w.gang))
	}
	return int32(len(w.pods))
}

type workloads struct{ *world }

func (w workloads) Workload(_ context.Context, ref workload.Ref) (workload.State, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.looked++
	if ref.Name == "gone" {
		return workload.State{}, errors.New("Deployment/gone does not exist in namespace default")
	}
	template := &corev1.Pod{}
	template.Namespace, template.Name = ref.Namespace, ref.Name+"-sample"
	return workload.State{Ref: ref, UID: "uid-" + types.UID(ref.Name), Template: template, Claims: !w.noClaims, Replicas: w.replicas(), Gated: w.gated, Gang: w.gang, Pods: slices.Clone(w.pods)}, nil
}

func (w workloads) Pending(_ context.Context, of workload.Pending) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pending[whose(of)], nil
}

func (w workloads) Watch(context.Context, workload.Pending) (<-chan int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	changes := make(chan int, 1)
	w.changes = append(w.changes, changes)
	return changes, nil
}

func whose(of workload.Pending) string {
	if of.Workload != nil {
		return of.Namespace + "/" + of.Workload.String()
	}
	return of.Namespace + "/" + of.Class
}

type gates struct{ *world }

func (w gates) Serve(_ context.Context, target *workload.State, count int, by string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gatedPods = len(target.Pods)
	w.opened = append(w.opened, fmt.Sprintf("%s: %d by %s", target.Ref, count, by))
}

type usages struct{ *world }

func (w usages) Usage(context.Context, workload.State) (usage.Usage, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.usage, w.usageErr
}

type plans struct{ *world }

func (w plans) Supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked[replica.ID]++
	w.supplied[replica.ID] = replica
	if ctx.Err() != nil {
		return scaleout.Supply{}, ctx.Err()
	}
	supply, ok := w.supplies[replica.ID]
	if w.supplyErr == nil && !ok {
		return scaleout.Supply{}, fmt.Errorf("no supply for replica %s", replica.ID)
	}
	return supply, w.supplyErr
}

func (w plans) Blocked(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.blocked[uid]
}

func (w plans) Known(uid types.UID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.unknown[uid]
}

type queries struct{ *world }

func (w queries) Query(_ context.Context, _, query string) (float64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queried++
	return w.answers[query], w.queryErr
}

type profiles struct{ *world }

func (w profiles) Get(name string) (profile.Profile, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.profiles[name]
	if !ok {
		return p, errors.New("unknown")
	}
	return p, nil
}

func (w profiles) Names() []string { return []string{"batch", "realtime"} }

func (w profiles) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}
