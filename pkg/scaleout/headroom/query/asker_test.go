package query

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/test/fixture"
)

var noon = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// prometheus has values by query; a query without one is an error.
type prometheus struct {
	mu      sync.Mutex
	values  map[string]float64
	asked   int
	at, max int
}

func (p *prometheus) Query(_ context.Context, query string) (float64, error) {
	p.mu.Lock()
	p.asked++
	p.at++
	p.max = max(p.max, p.at)
	value, ok := p.values[query]
	p.mu.Unlock()
	time.Sleep(time.Millisecond) // those that are asked at a time meet here, as time stands still in their bubble
	p.mu.Lock()
	defer p.mu.Unlock()
	p.at--
	if !ok {
		return 0, fmt.Errorf("query %s of Prometheus: it is down", query)
	}
	return value, nil
}

func (p *prometheus) set(query string, value float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.values[query] = value
}

func headroomOf(name, query string) *v1alpha1.GPUHeadroom {
	h := &v1alpha1.GPUHeadroom{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUHeadroomSpec{DeviceClassName: "gpu"}}
	if query != "" {
		h.Spec.Query = &v1alpha1.DeviceQuery{PromQL: query, MaxDevices: 10}
	}
	return h
}

// world is an asker of headrooms, whose rounds the test does.
type world struct {
	*Asker
	prometheus *prometheus
	clock      *clocktesting.FakeClock
	changes    int
}

func newWorld(t *testing.T, of ...client.Object) *world {
	t.Helper()
	w := &world{prometheus: &prometheus{values: map[string]float64{}}, clock: clocktesting.NewFakeClock(noon)}
	w.Asker = New(reader(t, of...), w.prometheus, func() { w.changes++ }, w.clock)
	return w
}

func reader(t *testing.T, of ...client.Object) client.WithWatch {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(of...).Build()
}

// pass lets so much time go by, and has the round then.
func (w *world) pass(t *testing.T, d time.Duration) {
	t.Helper()
	w.clock.Step(d)
	if err := w.round(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAQueryIsAskedAgainAfterAWhile(t *testing.T) {
	h := headroomOf("a", "sum(a)")
	w := newWorld(t, h, headroomOf("plain", ""))
	w.prometheus.set("sum(a)", 2.5)
	w.pass(t, 0)
	if got := w.Of(h); got != (headroom.Answer{Devices: 3, At: noon}) || w.changes != 1 {
		t.Fatalf("the answer is %v after %d changes", got, w.changes)
	}
	w.pass(t, interval-time.Second)
	if w.prometheus.asked != 1 {
		t.Errorf("it was asked %d times within %s", w.prometheus.asked, interval)
	}
	w.pass(t, time.Second)
	if got := w.Of(h); got.At != noon.Add(interval) || w.changes != 1 {
		t.Errorf("the answer is %v after %d changes", got, w.changes)
	}
	w.prometheus.set("sum(a)", 7)
	w.pass(t, interval)
	if got := w.Of(h); got.Devices != 7 || w.changes != 2 {
		t.Errorf("the answer is %v after %d changes", got, w.changes)
	}
}

func TestAFailureKeepsTheLastAnswerAndSaysWhy(t *testing.T) {
	h := headroomOf("a", "sum(a)")
	w := newWorld(t, h)
	w.prometheus.set("sum(a)", 4)
	w.pass(t, 0)
	for _, failed := range []func(){
		func() { delete(w.prometheus.values, "sum(a)") },
		func() { w.prometheus.set("sum(a)", math.NaN()) },
	} {
		failed()
		w.pass(t, interval)
		got := w.Of(h)
		if got.Devices != 4 || got.At != noon {
			t.Errorf("the last answer is %v", got)
		}
		fixture.Sentence(t, errors.New(got.Problem), "query")
	}
	w.prometheus.set("sum(a)", 4)
	w.pass(t, interval)
	if got := w.Of(h); got.Problem != "" || got.At != noon.Add(3*interval) {
		t.Errorf("answered again it is %v", got)
	}
	if w.changes != 4 {
		t.Errorf("there were %d changes, want one for each new sentence", w.changes)
	}
}

func TestANewQueryIsAskedAtOnceAndAGoneOneForgotten(t *testing.T) {
	h := headroomOf("a", "sum(a)")
	w := newWorld(t)
	w.prometheus.set("sum(a)", 4)
	w.prometheus.set("sum(b)", 5)
	for _, step := range []struct {
		query string
		want  int32
	}{{"sum(a)", 4}, {"sum(b)", 5}, {"", 0}, {"sum(a)", 4}} {
		w.reader = reader(t, headroomOf("a", step.query))
		w.pass(t, look)
		if got := w.Of(h); got.Devices != step.want {
			t.Errorf("with %q it asks for %d, want %d", step.query, got.Devices, step.want)
		}
	}
}

func TestWithoutPrometheusItSaysSo(t *testing.T) {
	h := headroomOf("a", "sum(a)")
	a := New(reader(t, h), nil, func() { t.Error("something has changed") }, clocktesting.NewFakeClock(noon))
	if err := a.round(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := a.Of(h)
	if !got.Nobody {
		t.Error("there is somebody to ask")
	}
	fixture.Sentence(t, errors.New(got.Problem), "controller.keda.prometheus.address")
	if got := a.Of(headroomOf("plain", "")); got != (headroom.Answer{}) {
		t.Errorf("without a query the answer is %v", got)
	}
}

func TestManyAreAskedAFewAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []client.Object
		for i := range 100 {
			all = append(all, headroomOf(fmt.Sprint("h", i), fmt.Sprint("q", i)))
		}
		w := newWorld(t, all...)
		w.changed = func() {}
		w.pass(t, 0)
		if w.prometheus.asked != 100 || w.prometheus.max != atOnce {
			t.Errorf("%d were asked, %d at a time", w.prometheus.asked, w.prometheus.max)
		}
	})
}

func TestItAsksUntilItIsToEnd(t *testing.T) {
	h := headroomOf("a", "sum(a)")
	w := newWorld(t)
	refused := true
	w.reader = interceptor.NewClient(reader(t, h), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
			if refused {
				refused = false
				return errors.New("not yet")
			}
			return c.List(ctx, list, options...)
		},
	})
	w.prometheus.set("sum(a)", 4)
	w.changed = func() {}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Start(ctx) }()
	fixture.Eventually(t, "the query is answered", func() error {
		if w.clock.HasWaiters() {
			w.clock.Step(look)
		}
		if w.Of(h).At.IsZero() {
			return errors.New("it is not")
		}
		return nil
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
