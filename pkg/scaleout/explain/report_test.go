package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/test/fixture"
)

var noon = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

// recorder keeps Events.
type recorder []string

func (r *recorder) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	*r = append(*r, fmt.Sprintf("%s %s %s: %s", regarding.(*corev1.Pod).Name, kind, reason, fmt.Sprintf(note, args...)))
}

// rig is a reporter with its pods.
type rig struct {
	*Reporter
	t      *testing.T
	events recorder
}

// newRig fails to write conditions with the failure for the pod's name. A nil function never fails.
func newRig(t *testing.T, failure func(pod string) error, pods ...*corev1.Pod) *rig {
	objects := make([]client.Object, len(pods))
	for i, pod := range pods {
		objects[i] = pod
	}
	x := &rig{t: t}
	c := fake.NewClientBuilder().WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if failure != nil {
				if err := failure(o.GetName()); err != nil {
					return err
				}
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		}}).Build()
	x.Reporter = NewReporter(c, &x.events)
	return x
}

func (x *rig) pods() []*corev1.Pod {
	x.t.Helper()
	var list corev1.PodList
	if err := x.Client.List(x.t.Context(), &list); err != nil {
		x.t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods
}

// report reports as a controller that has just started.
func (x *rig) report(now time.Time, explained ...Explanation) time.Duration {
	x.t.Helper()
	again, err := x.Report(x.t.Context(), explained, x.pods(), now)
	if err != nil {
		x.t.Fatal(err)
	}
	return again
}

func waiting(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}}},
	}
}

func explained(name string, outcome scaleout.Outcome, summary string) Explanation {
	return Explanation{
		Pod: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID(name),
		Kind: strings.TrimRight(name, "0123456789"), Outcome: outcome, Summary: summary,
	}
}

func scaleUp(pod *corev1.Pod) corev1.PodCondition {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.ConditionScaleUp })
	if i < 0 {
		return corev1.PodCondition{}
	}
	return pod.Status.Conditions[i]
}

// A pod with room on a node that the scheduler does not use gets a condition, too: the controller measures the time by it.
func TestAPodWithRoomGetsACondition(t *testing.T) {
	pod := waiting("a")
	pod.CreationTimestamp = metav1.NewTime(noon)
	x := newRig(t, nil, pod)
	x.report(noon.Add(31*time.Second), explained("a", scaleout.FitsNode, "fits"))
	if got := scaleUp(x.pods()[0]); got.Reason != v1alpha1.ReasonFitsNode || !strings.Contains(got.Message, "a node has room") {
		t.Errorf("the condition is %+v", got)
	}
}

// The condition keeps its time, whichever node has room.
func TestRoomOnAnotherNodeIsNoChange(t *testing.T) {
	x := newRig(t, nil, waiting("a"))
	for i, node := range []string{"n1", "n2"} {
		kind := scaleout.Kind{ID: "a"}
		pod := scaleout.PodDecision{Pod: types.NamespacedName{Namespace: "default", Name: "a"}, UID: "a", Outcome: scaleout.FitsNode, Node: node}
		x.report(noon.Add(time.Duration(i)*5*time.Minute), explanation(kind, pod, nil))
	}
	if got := scaleUp(x.pods()[0]); !got.LastProbeTime.Time.Equal(noon) || len(x.events) != 1 {
		t.Errorf("the condition is of %s, with %d Events; want 1, at noon", got.LastProbeTime, len(x.events))
	}
}

func TestEachChangeIsWrittenOnce(t *testing.T) {
	pod := waiting("a")
	pod.CreationTimestamp = metav1.NewTime(noon)
	x := newRig(t, nil, pod)
	steps := []struct {
		after  time.Duration
		e      Explanation
		status corev1.ConditionStatus
		again  time.Duration
		events int
	}{
		{0, explained("a", scaleout.FitsNode, "fits"), "", 30 * time.Second, 0},
		{time.Second, explained("a", scaleout.Blocked, "nothing fits"), corev1.ConditionFalse, 0, 1},
		{2 * time.Second, explained("a", scaleout.Blocked, "nothing fits"), corev1.ConditionFalse, 0, 1},
		{11 * time.Second, explained("a", scaleout.Blocked, "6 of 8 in use"), corev1.ConditionFalse, 50 * time.Second, 1},
		{61 * time.Second, explained("a", scaleout.Blocked, "7 of 8 in use"), corev1.ConditionFalse, 0, 2},
		{62 * time.Second, explained("a", scaleout.NeedsNode, "needs a node"), corev1.ConditionTrue, 0, 3},
		{63 * time.Second, explained("a", scaleout.FitsStarting, "waits"), corev1.ConditionTrue, 0, 4},
		{64 * time.Second, explained("a", scaleout.FitsNode, "fits"), corev1.ConditionTrue, 0, 5},
	}
	for i, step := range steps {
		if again := x.report(noon.Add(step.after), step.e); again != step.again {
			t.Errorf("step %d: again in %s, want %s", i, again, step.again)
		}
		pod := x.pods()[0]
		if got := scaleUp(pod); got.Status != step.status {
			t.Errorf("step %d: condition is %+v, want status %q", i, got, step.status)
		}
		if len(x.events) != step.events {
			t.Errorf("step %d: %d Events, want %d: %q", i, len(x.events), step.events, x.events)
		}
		if len(pod.Status.Conditions) > 2 || pod.Status.Conditions[0].Type != corev1.PodScheduled && pod.Status.Conditions[1].Type != corev1.PodScheduled {
			t.Errorf("step %d: other conditions were touched: %+v", i, pod.Status.Conditions)
		}
	}
	if got := scaleUp(x.pods()[0]); !got.LastTransitionTime.Time.Equal(noon.Add(62 * time.Second)) {
		t.Errorf("the condition is true since %s, want since it became so", got.LastTransitionTime)
	}
	if want := "a Warning GPUNoFit: nothing fits"; x.events[0] != want {
		t.Errorf("first Event is %q, want %q", x.events[0], want)
	}
}

func TestPodsThatDoNotWaitAreLeftAlone(t *testing.T) {
	placed, going := waiting("placed"), waiting("going")
	placed.Spec.NodeName = "node-a"
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: noon}, []string{"a/b"}
	x := newRig(t, nil, placed, going)
	x.report(noon, explained("placed", scaleout.Blocked, "x"), explained("going", scaleout.Blocked, "x"), explained("gone", scaleout.Blocked, "x"))
	if len(x.events) != 0 {
		t.Errorf("wrote %q", x.events)
	}
}

func TestAPassWritesOnePodPerKindFirst(t *testing.T) {
	x := newRig(t, nil, waiting("a1"), waiting("a2"), waiting("a3"), waiting("b1"))
	x.Limit = 2
	explained := []Explanation{explained("a1", scaleout.Blocked, "x"), explained("a2", scaleout.Blocked, "x"), explained("a3", scaleout.Blocked, "x"), explained("b1", scaleout.Blocked, "x")}
	for pass, want := range []string{"a1 b1", "a2 a3", ""} {
		x.events = nil
		again := x.report(noon, explained...)
		var names []string
		for _, event := range x.events {
			name, _, _ := strings.Cut(event, " ")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("pass %d wrote %q, want %q", pass, got, want)
		}
		if more := pass == 0; (again > 0) != more {
			t.Errorf("pass %d: again in %s", pass, again)
		}
	}
}

// The cache may be behind the reporter's own writes.
func TestPodsOfAnOldCacheAreNotWrittenTwice(t *testing.T) {
	x := newRig(t, nil, waiting("a"))
	read := x.pods()
	for range 2 {
		if _, err := x.Report(t.Context(), []Explanation{explained("a", scaleout.Blocked, "x")}, read, noon); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.events) != 1 {
		t.Errorf("wrote %q, want it once", x.events)
	}
}

// A failure for one pod does not stop the others, unless the API server does not answer. There is no Event without a
// condition.
func TestFailuresToWrite(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, test := range map[string]struct {
		failure error
		fails   bool
		written int
	}{
		"gone":                 {apierrors.NewNotFound(pods, "a"), false, 2},
		"replaced":             {apierrors.NewConflict(pods, "a", errors.New("other UID")), false, 2},
		"refused by a webhook": {apierrors.NewForbidden(pods, "a", errors.New("not here")), true, 2},
		"overloaded":           {apierrors.NewTooManyRequestsError("later"), true, 0},
		"an error":             {apierrors.NewInternalError(errors.New("disk")), true, 0},
		"no way":               {errors.New("no route to host"), true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := newRig(t, func(pod string) error {
				if pod == "a" {
					return test.failure
				}
				return nil
			}, waiting("a"), waiting("b"), waiting("c"))
			_, err := x.Report(t.Context(), []Explanation{explained("a", scaleout.Blocked, "x"), explained("b", scaleout.Blocked, "x"), explained("c", scaleout.Blocked, "x")}, x.pods(), noon)
			if test.fails {
				fixture.Sentence(t, err, "pod default/a", "mica.gpu/ScaleUp", test.failure.Error())
			} else if err != nil {
				t.Error(err)
			}
			if len(x.events) != test.written {
				t.Errorf("wrote %q, want %d", x.events, test.written)
			}
		})
	}
}

func TestReasonDiffersForBlockedGroupsAndNoFit(t *testing.T) {
	near := Verdict{Group: "g5", finding: finding{Blocker: blockerSelector}}
	unknown := Verdict{Group: "new", finding: finding{Blocker: blockerTemplateUnknown}}
	for name, test := range map[string]struct {
		verdicts []Verdict
		want     string
	}{
		"a group at its maximum":             {[]Verdict{{Group: "p5", finding: finding{Blocker: blockerGroupAtMax}}, near}, reasonBlocked},
		"a group that is left alone":         {[]Verdict{{Group: "p5", finding: finding{Blocker: blockerGroupClosed}}, near}, reasonBlocked},
		"a group that does not fit":          {[]Verdict{near}, reasonNoFit},
		"one with an unknown template":       {[]Verdict{unknown}, reasonBlocked},
		"one that is nearer than an unknown": {[]Verdict{near, unknown}, reasonNoFit},
	} {
		t.Run(name, func(t *testing.T) {
			e := explained("a", scaleout.Blocked, "x")
			e.Verdicts = test.verdicts
			if got := condition(e, noon).Reason; got != test.want {
				t.Errorf("reason %s, want %s", got, test.want)
			}
		})
	}
}

// A user with rights for the pod alone gets what the controller wrote into it.
func TestConditionIsReadBack(t *testing.T) {
	for _, outcome := range []scaleout.Outcome{
		scaleout.FitsNode, scaleout.FitsStarting, scaleout.NeedsNode, scaleout.Advised, scaleout.Held, scaleout.OverBudget, scaleout.Unused, scaleout.Blocked,
	} {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = "research", "train"
		pod.Status.Conditions = []corev1.PodCondition{condition(Explanation{Outcome: outcome, Summary: "why"}, noon)}
		read, at, known := FromCondition(pod)
		summary := "why"
		if outcome == scaleout.FitsNode {
			summary = "a node has room for it now: the scheduler will put it there or elsewhere" // it names no node
		}
		if !known || read.Outcome != outcome || read.Summary != summary || read.Pod.String() != "research/train" || !at.Equal(noon) {
			t.Errorf("wrote %s, read %s %q of %s at %s, %v", outcome, read.Outcome, read.Summary, read.Pod, at, known)
		}
	}
	if _, _, known := FromCondition(&corev1.Pod{}); known {
		t.Error("a pod without the condition has a message")
	}
}
