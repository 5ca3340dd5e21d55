package control

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// asker asks for the same replicas in each pass, and keeps the plans.
type asker struct {
	replicas []scaleout.Replica
	planned  []scaleout.Decision
	failed   []error
	// onPlan is called before a plan is kept. May be nil.
	onPlan func()
}

func (a *asker) Replicas() []scaleout.Replica { return a.replicas }
func (a *asker) Failed(err error)             { a.failed = append(a.failed, err) }
func (a *asker) Planned(_ scaleout.Snapshot, d scaleout.Decision) {
	if a.onPlan != nil {
		a.onPlan()
	}
	a.planned = append(a.planned, d)
}

// rooms are those of the last plan.
func (a *asker) rooms() []scaleout.Supply { return a.planned[len(a.planned)-1].Supplies }

func TestEachPassReportsRoom(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6", func(g *v1alpha1.GPUNodeGroup) { g.Spec.Max = ptr.To(int32(3)) }))...)
	asks := asksForOne()
	w.loop.Forecast = asks
	w.pass()
	// Five GPUs wait, two nodes of four are asked for: the third is growth.
	want := scaleout.Supply{ID: "devices", Coming: 3, Provisionable: 4, Why: "group g6 may grow to its maximum of 3 nodes"}
	if diff := cmp.Diff([]scaleout.Supply{want}, asks.rooms()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	w.run(4 * time.Minute)
	expectServed(t, w, 5, 2)
	want.Free, want.Coming = 3, 0
	if diff := cmp.Diff([]scaleout.Supply{want}, asks.rooms()); diff != "" {
		t.Errorf("once the nodes are there: (-want +got)\n%s", diff)
	}
	if len(asks.failed) > 0 {
		t.Errorf("passes have failed: %v", asks.failed)
	}
}

// Counting room may take seconds. Pending pods do not wait for it.
func TestAPassActsBeforeItCountsRoom(t *testing.T) {
	w := newWorld(t, append(oneGPU(5), group("g6"))...)
	asks := &asker{}
	writes := []int{}
	asks.onPlan = func() { writes = append(writes, w.writes) }
	w.loop.Forecast = asks
	w.run(4 * time.Minute)
	if writes[0] == 0 {
		t.Error("the first pass has written nothing before it counted room")
	}
}

func TestAPassWithoutAPlanReportsTheError(t *testing.T) {
	w := newWorld(t)
	asks := &asker{}
	w.loop.Forecast = asks
	away := errors.New("etcd is away")
	w.loop.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return away },
	})
	if _, err := w.loop.Pass(t.Context()); err == nil {
		t.Fatal("the pass can read what is not to be read")
	}
	if len(asks.planned) != 0 || len(asks.failed) != 1 || !errors.Is(asks.failed[0], away) {
		t.Errorf("there are %d plans and the failures %v", len(asks.planned), asks.failed)
	}
}

// The Events of pods do not depend on the forecast.
func TestReplicasDoNotChangeTheEventsOfPods(t *testing.T) {
	events := func(forecast Forecast) []string {
		w := newWorld(t, append(oneGPU(5), group("g6"))...)
		if forecast != nil {
			w.loop.Forecast = forecast
		}
		w.run(4 * time.Minute)
		return w.events()
	}
	replica := &corev1.Pod{}
	replica.Namespace = "default"
	replica.Spec.NodeSelector = map[string]string{"zone": "nowhere"}
	with := events(&asker{replicas: []scaleout.Replica{{ID: "pod", Pod: replica}}})
	without := events(nil)
	if diff := cmp.Diff(without, with); diff != "" || len(without) == 0 {
		t.Errorf("%d events (-without replicas +with)\n%s", len(without), diff)
	}
}
