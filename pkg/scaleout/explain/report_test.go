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

// told is a reporter with its pods.
type told struct {
	*Reporter
	t      *testing.T
	events recorder
}

func newTold(t *testing.T, failure error, pods ...*corev1.Pod) *told {
	return newTroubled(t, func(string) error { return failure }, pods...)
}

// newTroubled fails to tell pods as failure says by their names.
func newTroubled(t *testing.T, failure func(pod string) error, pods ...*corev1.Pod) *told {
	objects := make([]client.Object, len(pods))
	for i, pod := range pods {
		objects[i] = pod
	}
	x := &told{t: t}
	c := fake.NewClientBuilder().WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
			if err := failure(o.GetName()); err != nil {
				return err
			}
			return c.SubResource(sub).Patch(ctx, o, p, opts...)
		}}).Build()
	x.Reporter = NewReporter(c, &x.events)
	return x
}

func (x *told) pods() []*corev1.Pod {
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

// report tells, as a controller that has just started.
func (x *told) report(now time.Time, explained ...Explanation) time.Duration {
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

func tells(name string, outcome scaleout.Outcome, summary string) Explanation {
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

// A pod for which there is room all the time, and which nobody puts there, would else never be told
// anything, and the controller would never know for how long there was room.
func TestNoPodWaitsInSilence(t *testing.T) {
	pod := waiting("a")
	pod.CreationTimestamp = metav1.NewTime(noon)
	x := newTold(t, nil, pod)
	x.report(noon.Add(31*time.Second), tells("a", scaleout.FitsNode, "fits"))
	if got := scaleUp(x.pods()[0]); got.Reason != v1alpha1.ReasonFitsNode || !strings.Contains(got.Message, "a node has room") {
		t.Errorf("it is told %+v", got)
	}
}

// How long there has been room is known from the condition, whichever node has it.
func TestRoomOnAnotherNodeIsNoChange(t *testing.T) {
	x := newTold(t, nil, waiting("a"))
	for i, node := range []string{"n1", "n2"} {
		kind := scaleout.Kind{ID: "a"}
		pod := scaleout.PodDecision{Pod: types.NamespacedName{Namespace: "default", Name: "a"}, UID: "a", Outcome: scaleout.FitsNode, Node: node}
		x.report(noon.Add(time.Duration(i)*5*time.Minute), explanation(kind, pod, nil))
	}
	if got := scaleUp(x.pods()[0]); !got.LastProbeTime.Time.Equal(noon) || len(x.events) != 1 {
		t.Errorf("it is told at %s, and by %d Events; want once, at noon", got.LastProbeTime, len(x.events))
	}
}

func TestEachChangeIsToldOnce(t *testing.T) {
	pod := waiting("a")
	pod.CreationTimestamp = metav1.NewTime(noon)
	x := newTold(t, nil, pod)
	steps := []struct {
		after  time.Duration
		tells  Explanation
		status corev1.ConditionStatus
		again  time.Duration
		events int
	}{
		{0, tells("a", scaleout.FitsNode, "fits"), "", 30 * time.Second, 0},
		{time.Second, tells("a", scaleout.Blocked, "nothing fits"), corev1.ConditionFalse, 0, 1},
		{2 * time.Second, tells("a", scaleout.Blocked, "nothing fits"), corev1.ConditionFalse, 0, 1},
		{11 * time.Second, tells("a", scaleout.Blocked, "6 of 8 in use"), corev1.ConditionFalse, 50 * time.Second, 1},
		{61 * time.Second, tells("a", scaleout.Blocked, "7 of 8 in use"), corev1.ConditionFalse, 0, 2},
		{62 * time.Second, tells("a", scaleout.NeedsNode, "needs a node"), corev1.ConditionTrue, 0, 3},
		{63 * time.Second, tells("a", scaleout.FitsStarting, "waits"), corev1.ConditionTrue, 0, 4},
		{64 * time.Second, tells("a", scaleout.FitsNode, "fits"), corev1.ConditionTrue, 0, 5},
	}
	for i, step := range steps {
		if again := x.report(noon.Add(step.after), step.tells); again != step.again {
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

func TestPodsThatNeedNotBeToldAreLeftAlone(t *testing.T) {
	placed, going := waiting("placed"), waiting("going")
	placed.Spec.NodeName = "node-a"
	going.DeletionTimestamp, going.Finalizers = &metav1.Time{Time: noon}, []string{"a/b"}
	x := newTold(t, nil, placed, going)
	x.report(noon, tells("placed", scaleout.Blocked, "x"), tells("going", scaleout.Blocked, "x"), tells("gone", scaleout.Blocked, "x"))
	if len(x.events) != 0 {
		t.Errorf("told %q", x.events)
	}
}

func TestAPassTellsOnePodOfEachKindFirst(t *testing.T) {
	x := newTold(t, nil, waiting("a1"), waiting("a2"), waiting("a3"), waiting("b1"))
	x.Limit = 2
	explained := []Explanation{tells("a1", scaleout.Blocked, "x"), tells("a2", scaleout.Blocked, "x"), tells("a3", scaleout.Blocked, "x"), tells("b1", scaleout.Blocked, "x")}
	for pass, want := range []string{"a1 b1", "a2 a3", ""} {
		x.events = nil
		again := x.report(noon, explained...)
		var names []string
		for _, event := range x.events {
			name, _, _ := strings.Cut(event, " ")
			names = append(names, name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("pass %d told %q, want %q", pass, got, want)
		}
		if more := pass == 0; (again > 0) != more {
			t.Errorf("pass %d: again in %s", pass, again)
		}
	}
}

func TestFailureToTell(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tc := range map[string]struct {
		failure error
		fails   bool
	}{
		"gone":      {apierrors.NewNotFound(pods, "a"), false},
		"replaced":  {apierrors.NewConflict(pods, "a", errors.New("other UID")), false},
		"forbidden": {apierrors.NewForbidden(pods, "a", errors.New("no right")), true},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTold(t, tc.failure, waiting("a"))
			_, err := x.Report(t.Context(), []Explanation{tells("a", scaleout.Blocked, "x")}, x.pods(), noon)
			if tc.fails {
				fixture.Sentence(t, err, "pod default/a", "mica.gpu/ScaleUp", "forbidden")
			} else if err != nil {
				t.Error(err)
			}
			if len(x.events) != 0 {
				t.Errorf("an Event tells what the condition does not: %q", x.events)
			}
		})
	}
}

// Who tells may have read the pods before it last told them, or they were put on a node.
func TestPodsThatWereReadLongAgoAreNotToldTwice(t *testing.T) {
	x := newTold(t, nil, waiting("a"))
	read := x.pods()
	for range 2 {
		if _, err := x.Report(t.Context(), []Explanation{tells("a", scaleout.Blocked, "x")}, read, noon); err != nil {
			t.Fatal(err)
		}
	}
	if len(x.events) != 1 {
		t.Errorf("told %q, want it once", x.events)
	}
}

func TestAPodThatCannotBeToldKeepsNobodyElseFromIt(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, test := range map[string]struct {
		failure error
		told    int
	}{
		"a webhook refuses":                 {apierrors.NewForbidden(pods, "a", errors.New("not here")), 2},
		"the API server is overloaded":      {apierrors.NewTooManyRequestsError("later"), 0},
		"the API server has an error":       {apierrors.NewInternalError(errors.New("disk")), 0},
		"there is no way to the API server": {errors.New("no route to host"), 0},
	} {
		t.Run(name, func(t *testing.T) {
			x := newTroubled(t, func(pod string) error {
				if pod == "a" {
					return test.failure
				}
				return nil
			}, waiting("a"), waiting("b"), waiting("c"))
			_, err := x.Report(t.Context(), []Explanation{tells("a", scaleout.Blocked, "x"), tells("b", scaleout.Blocked, "x"), tells("c", scaleout.Blocked, "x")}, x.pods(), noon)
			if !errors.Is(err, test.failure) {
				t.Errorf("the error is %v, want %v", err, test.failure)
			}
			if len(x.events) != test.told {
				t.Errorf("told %q, want %d", x.events, test.told)
			}
		})
	}
}

func TestReasonTellsBlockedGroupsFromNoFit(t *testing.T) {
	near := Verdict{Group: "g5", finding: finding{Blocker: blockerSelector}}
	unknown := Verdict{Group: "new", finding: finding{Blocker: blockerTemplateUnknown}}
	for name, test := range map[string]struct {
		verdicts []Verdict
		want     string
	}{
		"a group at its maximum":             {[]Verdict{{Group: "p5", finding: finding{Blocker: blockerGroupAtMax}}, near}, reasonBlocked},
		"a group that is left alone":         {[]Verdict{{Group: "p5", finding: finding{Blocker: blockerGroupClosed}}, near}, reasonBlocked},
		"a group that does not fit":          {[]Verdict{near}, reasonNoFit},
		"one of which nothing is known":      {[]Verdict{unknown}, reasonBlocked},
		"one that is nearer than an unknown": {[]Verdict{near, unknown}, reasonNoFit},
	} {
		t.Run(name, func(t *testing.T) {
			e := tells("a", scaleout.Blocked, "x")
			e.Verdicts = test.verdicts
			if got := condition(e, noon).Reason; got != test.want {
				t.Errorf("reason %s, want %s", got, test.want)
			}
		})
	}
}
