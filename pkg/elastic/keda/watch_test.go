package keda

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/test/fixture"
)

// long bounds the wait for something immediate on a busy machine.
const long = 30 * time.Second

// stream has the messages of a stream.
type stream[T any] struct {
	sent  chan T
	ended chan error
}

func open[T any](t *testing.T, watch func(ctx context.Context, send func(T) error) error) stream[T] {
	t.Helper()
	s := stream[T]{sent: make(chan T, 100), ended: make(chan error, 1)}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.ended <- watch(ctx, func(v T) error { s.sent <- v; return nil })
	}()
	t.Cleanup(func() { end(); <-done })
	return s
}

func (s stream[T]) next(t *testing.T) T {
	t.Helper()
	select {
	case v := <-s.sent:
		return v
	case err := <-s.ended:
		t.Fatalf("the stream has ended: %v", err)
	case <-time.After(long):
		t.Fatal("nothing is sent")
	}
	panic("not reached")
}

func watchActive(t *testing.T, w *world, metadata map[string]string) stream[bool] {
	t.Helper()
	return open(t, func(ctx context.Context, send func(bool) error) error {
		return w.scaler.WatchActive(ctx, scaledObject(metadata), send)
	})
}

// poll makes the stream read again. A tick that it has not received yet suffices: the stream reads after it.
func (w *world) poll(t *testing.T) {
	t.Helper()
	fixture.Eventually(t, "a stream waits for the time", func() error {
		if !w.clock.HasWaiters() {
			return errors.New("none does")
		}
		return nil
	})
	w.clock.Step(defaultPoll)
}

func TestTheFirstPendingClaimIsPushed(t *testing.T) {
	w := newWorld()
	s := watchActive(t, w, pendingTrigger)
	if s.next(t) {
		t.Fatal("active before a claim waits")
	}
	w.change(func() {
		w.pending["default/Job/train"] = 1
		w.changes[0] <- 1
	})
	if !s.next(t) {
		t.Fatal("the first claim that waits is not told")
	}
	w.change(func() {
		w.pending["default/Job/train"] = 0
		w.changes[0] <- 0
	})
	if s.next(t) {
		t.Fatal("no claim waits, and that is not told")
	}
}

func TestAStreamPollsMetricsWithoutChanges(t *testing.T) {
	w := newWorld()
	s := watchActive(t, w, queryTrigger)
	if s.next(t) {
		t.Fatal("active without load")
	}
	w.change(func() { w.answers["sum(waiting)"] = 1 })
	w.poll(t)
	if !s.next(t) {
		t.Fatal("the load is not told")
	}
	w.change(func() { w.answers["sum(waiting)"], w.pods = 0, []workload.Pod{pod("a", loadingFor(0))} })
	w.poll(t)
	w.change(func() { w.pods = nil })
	w.poll(t)
	if s.next(t) {
		t.Fatal("nothing has changed while a pod was loading, and that was told")
	}
}

func TestAStreamWaitsWhileTheValueIsUnknown(t *testing.T) {
	w := newWorld()
	w.queryErr = errors.New("down")
	s := watchActive(t, w, queryTrigger)
	w.poll(t)
	w.change(func() { w.queryErr, w.answers["sum(waiting)"] = nil, 1 })
	w.poll(t)
	if !s.next(t) {
		t.Fatal("the load is not told")
	}
	if len(s.sent) != 0 {
		t.Error("something was sent while nothing was known")
	}
}

func TestAStreamOfATriggerThatCannotBeReadEnds(t *testing.T) {
	w := newWorld()
	s := watchActive(t, w, with(busyTrigger, "metric", "gpu"))
	select {
	case err := <-s.ended:
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("ended by %v", err)
		}
	case <-time.After(long):
		t.Error("the stream stays")
	}
}

func TestAStreamEndsWhenItsClientIsGone(t *testing.T) {
	w := newWorld()
	away := errors.New("away")
	if err := w.scaler.WatchActive(t.Context(), scaledObject(queryTrigger), func(bool) error { return away }); !errors.Is(err, away) {
		t.Errorf("ended by %v", err)
	}
	if err := w.scaler.WatchSpec(t.Context(), scaledObject(queryTrigger), func(*externalscaler.GetMetricSpecResponse) error { return away }); !errors.Is(err, away) {
		t.Errorf("ended by %v", err)
	}
}

func TestATargetWithoutPossibleDevicesIsNotActivated(t *testing.T) {
	w := newWorld()
	w.supplies[vllm] = scaleout.Supply{Why: atMaximum}
	w.pending["default/Job/train"] = 1
	s := watchActive(t, w, with(pendingTrigger, "target", "Deployment/vllm"))
	if s.next(t) {
		t.Fatal("a target was activated that can have no device")
	}
	w.change(func() { w.supplies[vllm] = scaleout.Supply{Free: 1} })
	w.poll(t)
	if !s.next(t) {
		t.Fatal("there is a device, and that is not told")
	}
}

func TestTheSpecIsSentWhenProfilesMakeItAnother(t *testing.T) {
	w := newWorld()
	metadata := with(busyTrigger, "threshold", "-", "profile", "realtime")
	s := open(t, func(ctx context.Context, send func(*externalscaler.GetMetricSpecResponse) error) error {
		return w.scaler.WatchSpec(ctx, scaledObject(metadata), send)
	})
	threshold := func() float64 { return s.next(t).MetricSpecs[0].TargetSizeFloat }
	if got := threshold(); got != 70 {
		t.Fatalf("threshold %v", got)
	}
	change := func(to float64) {
		w.change(func() {
			p := w.profiles["realtime"]
			p.Targets = map[string]float64{"gpuUtilization": to}
			w.profiles["realtime"] = p
			close(w.changed)
			w.changed = make(chan struct{})
		})
	}
	change(70)
	change(60)
	if got := threshold(); got != 60 {
		t.Errorf("threshold %v", got)
	}
}

// KEDA starts a replica for a message of a stream, whatever the formula gives.
func TestMetricsForAFormulaAreNotPushed(t *testing.T) {
	for _, trigger := range []map[string]string{heldTrigger, possibleTrigger} {
		w := newWorld()
		p := w.profiles["realtime"]
		p.Triggers = []string{profile.GPUUtilization}
		w.profiles["realtime"] = p
		if active, err := w.scaler.Active(t.Context(), scaledObject(possibleTrigger)); err != nil || !active {
			t.Fatalf("there is room: %t, %v", active, err)
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(50*time.Millisecond, stop)
		err := w.scaler.WatchActive(ctx, scaledObject(trigger), func(active bool) error {
			t.Errorf("%s was pushed as %t", trigger["metric"], active)
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the stream of %s ended: %v", trigger["metric"], err)
		}
	}
}
