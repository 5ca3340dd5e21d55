package forecast

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

// loop stands for the controller's loop. The test decides when it plans.
type loop struct {
	*Forecast
	clock  *testingclock.FakePassiveClock
	marked atomic.Int32
}

func newLoop() *loop {
	l := &loop{clock: testingclock.NewFakePassiveClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	l.Forecast = New(func() { l.marked.Add(1) }, l.clock)
	return l
}

func (l *loop) step(d time.Duration) { l.clock.SetTime(l.clock.Now().Add(d)) }

// plan finds so much room for each of the replicas.
func (l *loop) plan(replicas []scaleout.Replica, free int) {
	var d scaleout.Decision
	for _, s := range replicas {
		d.Supplies = append(d.Supplies, scaleout.Supply{ID: s.ID, Free: free, Why: "of " + s.ID})
	}
	l.Planned(scaleout.Snapshot{}, d)
}

func (l *loop) pass(free int) { l.plan(l.Replicas(), free) }

// podReplica is a pod that is known by its image.
func podReplica(id, image string) scaleout.Replica {
	pod := &corev1.Pod{}
	pod.Namespace = "default"
	pod.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
	return scaleout.Replica{ID: id, Pod: pod}
}

// asking is a question that is under way.
type asking struct {
	supply scaleout.Supply
	err    error
	done   chan struct{}
}

// ask asks, and returns once the asker waits or has an answer.
func (l *loop) ask(ctx context.Context, s scaleout.Replica) *asking {
	a := &asking{done: make(chan struct{})}
	go func() {
		defer close(a.done)
		a.supply, a.err = l.Supply(ctx, s)
	}()
	synctest.Wait()
	return a
}

func (a *asking) waits() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

func (a *asking) expect(t *testing.T, free int) {
	t.Helper()
	if a.waits() {
		t.Fatal("there is no answer")
	}
	if a.err != nil || a.supply.Free != free {
		t.Fatalf("the answer is %+v, %v; want %d free", a.supply, a.err, free)
	}
}

func TestTheFirstQuestionWaitsForAPlanThatHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		running := l.Replicas() // by a pass that runs already
		first := l.ask(t.Context(), podReplica("a", "v1"))
		if got := l.marked.Load(); got != 1 {
			t.Fatalf("the loop is marked %d times, want once", got)
		}
		second := l.ask(t.Context(), podReplica("a", "v1"))
		l.plan(running, 7)
		if !first.waits() || !second.waits() {
			t.Fatal("a plan without the sample answers")
		}
		if got := len(l.Replicas()); got != 1 {
			t.Fatalf("the next plan has %d samples, want one", got)
		}
		l.pass(3)
		first.expect(t, 3)
		second.expect(t, 3)
		if first.supply.ID != "a" {
			t.Errorf("the room is of %q, want the ID under which was asked", first.supply.ID)
		}
		l.pass(4)
		l.ask(t.Context(), podReplica("a", "v1")).expect(t, 4)
		if got := l.marked.Load(); got != 1 {
			t.Errorf("the loop is marked %d times, though the question was known", got)
		}
	})
}

func TestAnotherContentIsAnotherQuestion(t *testing.T) {
	claim := func(class string) scaleout.Replica {
		spec := &resourceapi.ResourceClaimSpec{}
		spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "d", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}}}
		return scaleout.Replica{ID: "a", Claim: spec}
	}
	gang := func(count int) scaleout.Replica {
		return scaleout.Replica{ID: "a", Gang: []scaleout.Member{{Pod: &corev1.Pod{}, Count: count}}}
	}
	replicas := []scaleout.Replica{gang(1), gang(2), podReplica("a", "v1"), podReplica("a", "v2"), podReplica("b", "v1"), claim("x"), claim("y"), {ID: "a"}}
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		for i, s := range replicas {
			a := l.ask(t.Context(), s)
			if !a.waits() {
				t.Fatalf("sample %d is answered by what was asked before", i)
			}
			l.pass(i)
			a.expect(t, i)
		}
		if got := len(l.Replicas()); got != len(replicas) {
			t.Errorf("there are %d replicas, want %d", got, len(replicas))
		}
	})
}

func TestAnAnswerIsNeverStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		a := l.ask(t.Context(), podReplica("a", "v1"))
		l.pass(3)
		a.expect(t, 3)
		l.step(stale)
		l.ask(t.Context(), podReplica("a", "v1")).expect(t, 3)
		l.Failed(errors.New("list pods: forbidden"))
		l.step(time.Second)
		late := l.ask(t.Context(), podReplica("a", "v1"))
		if late.waits() || late.err == nil {
			t.Fatalf("the answer is %+v, want an error", late.supply)
		}
		for _, word := range []string{"3m1s old", "list pods: forbidden", "like a"} {
			if !strings.Contains(late.err.Error(), word) {
				t.Errorf("the error %q does not say %q", late.err, word)
			}
		}
		l.pass(5)
		l.ask(t.Context(), podReplica("a", "v1")).expect(t, 5)
	})
}

func TestAnEndedContextReportsTheLastFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		ctx, cancel := context.WithCancel(t.Context())
		a := l.ask(ctx, podReplica("a", "v1"))
		l.Failed(errors.New("list pods: forbidden"))
		if !a.waits() {
			t.Fatal("one pass that fails ends the waiting")
		}
		cancel()
		if a.waits() || !errors.Is(a.err, context.Canceled) || !strings.Contains(a.err.Error(), "list pods: forbidden") {
			t.Errorf("the error is %v, want the end of the context and the last failure", a.err)
		}
	})
}

func TestReplicasWithoutRequestsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		for _, id := range []string{"a", "b"} {
			asked := l.ask(t.Context(), podReplica(id, "v1"))
			l.pass(1)
			asked.expect(t, 1)
		}
		waiting := l.ask(t.Context(), podReplica("c", "v1"))
		l.step(forgotten)
		l.plan(l.Replicas()[:0], 0)
		if got := len(l.Replicas()); got != 3 {
			t.Fatalf("there are %d replicas after %s, want all 3", got, forgotten)
		}
		if stale := l.ask(t.Context(), podReplica("b", "v1")); stale.err == nil {
			t.Fatalf("plans without the sample keep its answer %+v fresh", stale.supply)
		}
		l.step(time.Second)
		if got := len(l.Replicas()); got != 2 {
			t.Errorf("there are %d replicas, want the one that was asked for and the one that is waited for", got)
		}
		l.pass(2)
		waiting.expect(t, 2)
	})
}

func TestThereAreOnlySoManySamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLoop()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range most {
			if _, err := l.Supply(ended, podReplica(fmt.Sprint(i), "v1")); !errors.Is(err, context.Canceled) {
				t.Fatalf("sample %d: %v, want the end of the context", i, err)
			}
		}
		if _, err := l.Supply(ended, podReplica("more", "v1")); err == nil || !strings.Contains(err.Error(), "4096 other replicas") {
			t.Fatalf("one more is not refused in words: %v", err)
		}
		if got := len(l.Replicas()); got != most {
			t.Errorf("there are %d replicas, want %d", got, most)
		}
		l.step(forgotten + time.Second)
		again := l.ask(t.Context(), podReplica("more", "v1"))
		l.pass(1)
		again.expect(t, 1)
	})
}

func TestBlockedIsOfTheLastPlan(t *testing.T) {
	l := newLoop()
	pods := map[types.UID]scaleout.Outcome{"blocked": scaleout.Blocked, "advised": scaleout.Advised, "fits": scaleout.FitsNode,
		"starting": scaleout.FitsStarting, "grows": scaleout.NeedsNode}
	var kind scaleout.Kind
	for uid, outcome := range pods {
		kind.Pods = append(kind.Pods, scaleout.PodDecision{UID: uid, Outcome: outcome})
	}
	l.Planned(scaleout.Snapshot{}, scaleout.Decision{Kinds: []scaleout.Kind{kind}})
	var got []types.UID
	for uid := range pods {
		if l.Blocked(uid) {
			got = append(got, uid)
		}
	}
	slices.Sort(got)
	if want := []types.UID{"advised", "blocked"}; !slices.Equal(got, want) {
		t.Errorf("blocked are %v, want %v", got, want)
	}
	l.step(stale + time.Second)
	if l.Blocked("blocked") {
		t.Error("a pod is blocked by a plan that is stale")
	}
	l.Planned(scaleout.Snapshot{}, scaleout.Decision{})
	if l.Blocked("blocked") {
		t.Error("a pod is blocked that the last plan does not have")
	}
}

func TestKnownAreThePodsOfTheLastPlan(t *testing.T) {
	l := newLoop()
	withUID := func(uid types.UID) *corev1.Pod {
		pod := &corev1.Pod{}
		pod.UID = uid
		return pod
	}
	l.Planned(scaleout.Snapshot{
		Pending: []*corev1.Pod{withUID("pending")},
		Nodes:   []scaleout.Node{{}, {Pods: []*corev1.Pod{withUID("bound")}}},
	}, scaleout.Decision{})
	for uid, want := range map[types.UID]bool{"pending": true, "bound": true, "later": false} {
		if l.Known(uid) != want {
			t.Errorf("pod %s is known: %v", uid, !want)
		}
	}
	l.Planned(scaleout.Snapshot{}, scaleout.Decision{})
	if l.Known("bound") {
		t.Error("a pod is known that the last plan had not")
	}
}

// Many ask while a loop passes: each gets the answer to its own question.
func TestManyAskAtOnce(t *testing.T) {
	dirty := make(chan struct{}, 1)
	f := New(func() {
		select {
		case dirty <- struct{}{}:
		default:
		}
	}, testingclock.NewFakePassiveClock(time.Unix(1000, 0)))
	ctx, cancel := context.WithCancel(t.Context())
	var passes, askers sync.WaitGroup
	passes.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-dirty:
			}
			var d scaleout.Decision
			for _, s := range f.Replicas() {
				d.Supplies = append(d.Supplies, scaleout.Supply{ID: s.ID, Why: s.Pod.Spec.Containers[0].Image})
			}
			f.Planned(scaleout.Snapshot{}, d)
		}
	})
	for i := range 64 {
		askers.Go(func() {
			for j := range 20 {
				image := fmt.Sprintf("v%d", (i+j)%10)
				supply, err := f.Supply(ctx, podReplica("a", image))
				if err != nil || supply.Why != image {
					t.Errorf("asked for %s, got %+v, %v", image, supply, err)
				}
				f.Blocked("unknown")
			}
		})
	}
	askers.Wait()
	cancel()
	passes.Wait()
}
