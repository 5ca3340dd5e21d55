package explain

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Reasons of Events and of the condition.
const (
	reasonFits    = v1alpha1.ReasonFitsNode
	reasonWaiting = "GPUWaitingForNode"
	reasonPlanned = "GPUScaleUpPlanned"
	reasonAdvised = "GPUScaleUpAdvised"
	reasonBlocked = "GPUScaleUpBlocked"
	reasonNoFit   = "GPUNoFit"
	reasonHeld    = "GPUScaleUpHeld"
	reasonUnused  = v1alpha1.ReasonNodeUnused
	reasonBudget  = "GPUOverBudget"
)

// quiet is the age before which a pod gets no message that usually settles by itself.
const quiet = 30 * time.Second

// settles reports whether most pods leave the outcome within seconds: when their claims are created, or the scheduler
// tries them.
func settles(outcome scaleout.Outcome) bool {
	return outcome == scaleout.Held || outcome == scaleout.FitsNode
}

// action is that of the Events.
const action = "PlanScaleUp"

// Reporter writes explanations into the condition ScaleUp of pods, with an Event for each change. The condition is its
// memory, so that a controller that has just started repeats nothing.
//
// Claims get no message: the API has no conditions for a claim without an allocation.
type Reporter struct {
	Client client.Client
	Events events.EventRecorder
	// Limit is the number of pods per pass.
	Limit int
	// Quiet is how long a message stands before another one with the same reason replaces it.
	Quiet time.Duration
}

// NewReporter has limits that the API server does not notice.
func NewReporter(c client.Client, recorder events.EventRecorder) *Reporter {
	return &Reporter{Client: c, Events: recorder, Limit: 200, Quiet: time.Minute}
}

// Report writes the explanations, one for each kind of pods before the second for any. It returns how long to wait
// before the next call if nothing changes; zero: no call is needed.
func (r *Reporter) Report(ctx context.Context, explained []Explanation, pods []*corev1.Pod, now time.Time) (time.Duration, error) {
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	var again time.Duration
	var failures []error
	written := 0
	for _, e := range fairly(explained) {
		pod := byUID[e.UID]
		if pod == nil || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil {
			continue
		}
		want, wait := r.changed(pod, e, now)
		switch {
		case wait > 0:
			again = sooner(again, wait)
			continue
		case want == nil:
			continue
		case written == r.Limit:
			return sooner(again, time.Second), errors.Join(failures...)
		}
		written++
		if err := r.update(ctx, pod, e, now); err != nil {
			failures = append(failures, err)
			if !isRefusal(err) {
				break
			}
		}
	}
	return again, errors.Join(failures...)
}

func sooner(a, b time.Duration) time.Duration {
	if a == 0 {
		return b
	}
	return min(a, b)
}

// fairly takes pods of the kinds in turn.
func fairly(explained []Explanation) []Explanation {
	pods, turns := map[string]int{}, map[types.UID]int{}
	for _, e := range explained {
		turns[e.UID] = pods[e.Kind]
		pods[e.Kind]++
	}
	sorted := slices.Clone(explained)
	slices.SortStableFunc(sorted, func(a, b Explanation) int { return turns[a.UID] - turns[b.UID] })
	return sorted
}

// changed is the condition to write, nil if the pod has it; or how long the pod's condition still has to stand.
func (r *Reporter) changed(pod *corev1.Pod, e Explanation, now time.Time) (*corev1.PodCondition, time.Duration) {
	want := condition(e, now)
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.ConditionScaleUp })
	if i < 0 {
		if age := now.Sub(pod.CreationTimestamp.Time); settles(e.Outcome) && age < quiet {
			return nil, quiet - age
		}
		return &want, 0
	}
	has := pod.Status.Conditions[i]
	if has.Status == want.Status {
		want.LastTransitionTime = has.LastTransitionTime
	}
	if has.Status != want.Status || has.Reason != want.Reason {
		return &want, 0
	}
	if has.Message == want.Message {
		return nil, 0
	}
	// On a busy cluster, the number of free devices changes every second.
	stood := now.Sub(has.LastProbeTime.Time)
	if stood >= 0 && stood < r.Quiet {
		return nil, r.Quiet - stood
	}
	return &want, 0
}

// reasonsOf has the reason of the condition by outcome. Blocked has two.
var reasonsOf = map[scaleout.Outcome]string{
	scaleout.FitsNode: reasonFits, scaleout.FitsStarting: reasonWaiting, scaleout.NeedsNode: reasonPlanned,
	scaleout.Advised: reasonAdvised, scaleout.Held: reasonHeld, scaleout.OverBudget: reasonBudget, scaleout.Unused: reasonUnused,
}

// condition is true for pods that will get a node, as far as the plan knows.
func condition(e Explanation, now time.Time) corev1.PodCondition {
	c := corev1.PodCondition{
		Type: v1alpha1.ConditionScaleUp, Status: corev1.ConditionFalse, Reason: reasonsOf[e.Outcome], Message: e.Summary,
		LastTransitionTime: metav1.NewTime(now), LastProbeTime: metav1.NewTime(now),
	}
	switch e.Outcome {
	case scaleout.FitsNode, scaleout.FitsStarting, scaleout.NeedsNode:
		c.Status = corev1.ConditionTrue
	}
	switch {
	case e.Outcome == scaleout.FitsNode:
		// Each plan may find another node. LastProbeTime says since when there is one.
		c.Message = "a node has room for it now: the scheduler will put it there or elsewhere"
	case c.Reason == "" && mayGrow(e.Verdicts):
		c.Reason = reasonBlocked
	case c.Reason == "":
		c.Reason = reasonNoFit
	}
	return c
}

// FromCondition returns the last message of a reporter to a pod, and its time; false if there is none. It has a summary
// and no verdicts, for users with few rights besides the pod.
func FromCondition(pod *corev1.Pod) (Explanation, time.Time, bool) {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.ConditionScaleUp })
	if i < 0 {
		return Explanation{}, time.Time{}, false
	}
	last := pod.Status.Conditions[i]
	e := Explanation{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID, Summary: last.Message, Verdicts: []Verdict{}}
	for outcome, reason := range reasonsOf {
		if reason == last.Reason {
			e.Outcome = outcome
		}
	}
	if last.Reason == reasonBlocked || last.Reason == reasonNoFit {
		e.Outcome = scaleout.Blocked
	}
	return e, cmp.Or(last.LastProbeTime.Time, last.LastTransitionTime.Time), e.Outcome != ""
}

// isRefusal reports whether the API server refuses this pod alone, such as by an admission webhook. Otherwise it does
// not answer or is overloaded.
func isRefusal(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// mayGrow reports whether the pod waits for a group: one that would fit and cannot grow, or one whose template is
// unknown, if no other is nearer.
func mayGrow(verdicts []Verdict) bool {
	for i, v := range verdicts {
		switch v.Blocker {
		case blockerGroupClosed, blockerGroupAtMax:
			return true
		case blockerTemplateUnknown:
			return i == 0
		}
	}
	return false
}

// update reads the pod again before it writes: the cache may be behind the last write, or the pod may have a node now.
func (r *Reporter) update(ctx context.Context, read *corev1.Pod, e Explanation, now time.Time) error {
	var pod corev1.Pod
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(read), &pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if want, _ := r.changed(&pod, e, now); want != nil && pod.UID == e.UID && pod.Spec.NodeName == "" {
		return r.write(ctx, &pod, *want)
	}
	return nil
}

// write writes the condition, and then the Event: after a crash in between, the message is not repeated.
func (r *Reporter) write(ctx context.Context, pod *corev1.Pod, c corev1.PodCondition) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, // refuses a new pod of the same name
		"status":   map[string]any{"conditions": []corev1.PodCondition{c}},
	})
	if err != nil {
		return fmt.Errorf("encode condition %s of pod %s: %w", c.Type, klog.KObj(pod), err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = r.Client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write condition %s of pod %s: %w", c.Type, klog.KObj(pod), err)
	}
	kind := corev1.EventTypeNormal
	if c.Status == corev1.ConditionFalse {
		kind = corev1.EventTypeWarning
	}
	r.Events.Eventf(pod, nil, kind, c.Reason, action, "%s", c.Message)
	klog.FromContext(ctx).V(2).Info("Wrote why a pod waits", "pod", klog.KObj(pod), "reason", c.Reason, "message", c.Message)
	return nil
}
