package control

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/explain"
)

// slowServer blocks each write of a pod's status until the test allows it.
type slowServer struct {
	writing, write chan string
	failure        error
}

func newSlowWriter(t *testing.T, s *slowServer, again func()) (*writer, []*corev1.Pod) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"}}
	s.writing, s.write = make(chan string), make(chan string)
	c := fake.NewClientBuilder().WithObjects(pod).WithStatusSubresource(pod).WithInterceptorFuncs(interceptor.Funcs{
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			select {
			case s.writing <- o.GetName():
			case <-ctx.Done():
				return ctx.Err()
			}
			select {
			case <-s.write:
			case <-ctx.Done():
				return ctx.Err()
			}
			return errors.Join(s.failure, c.SubResource(sub).Patch(ctx, o, p, opts...))
		},
	}).Build()
	clock := testingclock.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	writer := &writer{reporter: explain.NewReporter(c, events.NewFakeRecorder(100)), clock: clock, again: again, reports: make(chan report, 1)}
	writer.reporter.Quiet = 0
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { writer.run(ctx) })
	t.Cleanup(func() { stop(); running.Wait() })
	return writer, []*corev1.Pod{pod}
}

func (t *writer) say(pods []*corev1.Pod, text string) {
	t.submit(report{statuses: func(context.Context) error { return nil }, at: t.clock.Now(), pods: pods, explained: []explain.Explanation{{
		Pod: types.NamespacedName{Namespace: "default", Name: "p"}, UID: "p", Kind: "k", Outcome: scaleout.Blocked, Summary: text,
	}}})
}

// Passes go on while a pod's condition is written. Only the newest report is written next.
func TestPassesDoNotWaitForConditionsOfPods(t *testing.T) {
	s := &slowServer{}
	writer, pods := newSlowWriter(t, s, func() {})
	writer.say(pods, "first")
	<-s.writing
	writer.say(pods, "outdated")
	writer.say(pods, "newest")
	s.write <- ""
	<-s.writing
	s.write <- ""
	written := writer.reporter.Events.(*events.FakeRecorder).Events
	<-written
	<-written
	var pod corev1.Pod
	if err := writer.reporter.Client.Get(t.Context(), client.ObjectKeyFromObject(pods[0]), &pod); err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Message == "newest" }); i < 0 {
		t.Errorf("the pod has the conditions %v", pod.Status.Conditions)
	}
}

func TestAFailedReportIsInTheNextPass(t *testing.T) {
	s := &slowServer{failure: errors.New("disk full")}
	writer, pods := newSlowWriter(t, s, func() {})
	writer.say(pods, "first")
	<-s.writing
	s.write <- ""
	writer.say(pods, "second")
	<-s.writing // the first is done
	if err := writer.failure(); !errors.Is(err, s.failure) {
		t.Errorf("the error is %v", err)
	}
	s.write <- ""
}

func TestALateReportBeginsAPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := make(chan struct{}, 1)
		writer, pods := newSlowWriter(t, &slowServer{}, func() { begun <- struct{}{} })
		writer.reporter.Limit = 0
		writer.say(pods, "first")
		synctest.Wait()
		writer.clock.(*testingclock.FakeClock).Step(time.Second)
		synctest.Wait()
		if len(begun) != 1 {
			t.Error("no pass began a second after a report that was delayed")
		}
	})
}

// Passes decide and act while the status of a group is written.
func TestPassesDoNotWaitForStatuses(t *testing.T) {
	w := newWorld(t, append(oneGPU(1), group("g6"))...)
	writing, write := make(chan struct{}, 10), make(chan struct{})
	w.loop.Client = interceptor.NewClient(w.client, interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			writing <- struct{}{}
			<-write
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.loop.writer.run(ctx) })
	t.Cleanup(func() { close(write); stop(); running.Wait() })
	passed := make(chan error)
	pass := func() {
		t.Helper()
		go func() {
			_, err := w.loop.Pass(ctx)
			passed <- err
		}()
		select {
		case err := <-passed:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("the pass waits for a status to be written")
		}
	}
	pass()
	<-writing
	w.clock.Step(time.Minute) // Cluster Autoscaler says nothing
	w.autoscale()
	pass()
	if n := w.placeholders(); n != 1 {
		t.Errorf("there are %d placeholders, want 1", n)
	}
}
