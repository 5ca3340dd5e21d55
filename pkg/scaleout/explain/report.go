package explain

import (
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

// quiet is how old a pod is before it is told what usually settles by itself.
const quiet = 30 * time.Second

// settles tells what most pods wait for until their claims are made, and the scheduler has come to them.
func settles(outcome scaleout.Outcome) bool {
	return outcome == scaleout.Held || outcome == scaleout.FitsNode
}

// action is what the controller was doing when it told a pod of its plan.
const action = "PlanScaleUp"

// Reporter tells pods what they wait for: by a condition, and an Event each time that it
// changes. What was told before is in the condition, so that a controller that has just
// started does not tell it again.
//
// It is the pod that is told and not its claims: a claim's status can speak of devices only
// once they are allocated.
type Reporter struct {
	Client client.Client
	Events events.EventRecorder
	// Limit is how many pods are told in one pass.
	Limit int
	// Quiet is how long a text stands before another one with the same reason replaces it.
	Quiet time.Duration
}

// NewReporter tells as many pods in a pass as the API server takes without being noticed.
func NewReporter(c client.Client, recorder events.EventRecorder) *Reporter {
	return &Reporter{Client: c, Events: recorder, Limit: 200, Quiet: time.Minute}
}

// Report tells the pods, one of each kind before the second of any. It gives how long to wait
// before it is to be called again though nothing has changed; zero: that need not be.
func (r *Reporter) Report(ctx context.Context, explained []Explanation, pods []*corev1.Pod, now time.Time) (time.Duration, error) {
	byUID := make(map[types.UID]*corev1.Pod, len(pods))
	for _, pod := range pods {
		byUID[pod.UID] = pod
	}
	var again time.Duration
	var failures []error
	told := 0
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
		case told == r.Limit:
			return sooner(again, time.Second), errors.Join(failures...)
		}
		told++
		if err := r.tellNow(ctx, pod, e, now); err != nil {
			failures = append(failures, err)
		}
		if len(failures) > 0 && !isRefusal(failures[len(failures)-1]) {
			break
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
	turn := map[string]int{}
	turns := make([]int, len(explained))
	order := make([]int, len(explained))
	for i, e := range explained {
		order[i] = i
		turns[i] = turn[e.Kind]
		turn[e.Kind]++
	}
	slices.SortStableFunc(order, func(a, b int) int { return turns[a] - turns[b] })
	sorted := make([]Explanation, len(explained))
	for i, from := range order {
		sorted[i] = explained[from]
	}
	return sorted
}

// changed is the condition that the pod is to have, nil where it has it; or how long what it
// has is still to stand.
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
	// What others have of the devices changes by the second on a busy cluster.
	stood := now.Sub(has.LastProbeTime.Time)
	if stood >= 0 && stood < r.Quiet {
		return nil, r.Quiet - stood
	}
	return &want, 0
}

// condition is true for pods that will get a node, as far as one can see.
func condition(e Explanation, now time.Time) corev1.PodCondition {
	c := corev1.PodCondition{
		Type: v1alpha1.ConditionScaleUp, Status: corev1.ConditionTrue, Message: e.Summary,
		LastTransitionTime: metav1.NewTime(now), LastProbeTime: metav1.NewTime(now),
	}
	switch e.Outcome {
	case scaleout.FitsNode:
		// Which node has room changes with every plan, and LastProbeTime is for how long one has had it.
		c.Reason, c.Message = reasonFits, "a node has room for it now: the scheduler will put it there or elsewhere"
	case scaleout.FitsStarting:
		c.Reason = reasonWaiting
	case scaleout.NeedsNode:
		c.Reason = reasonPlanned
	case scaleout.Advised:
		c.Status, c.Reason = corev1.ConditionFalse, reasonAdvised
	case scaleout.Held:
		c.Status, c.Reason = corev1.ConditionFalse, reasonHeld
	case scaleout.OverBudget:
		c.Status, c.Reason = corev1.ConditionFalse, reasonBudget
	case scaleout.Unused:
		c.Status, c.Reason = corev1.ConditionFalse, reasonUnused
	default:
		c.Status, c.Reason = corev1.ConditionFalse, reasonNoFit
		if mayGrow(e.Verdicts) {
			c.Reason = reasonBlocked
		}
	}
	return c
}

// isRefusal tells an answer about one pod, as of an admission webhook, which must not keep
// others from being told, from an API server that does not answer or is overloaded.
func isRefusal(err error) bool {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return false
	}
	code := answer.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusTooManyRequests
}

// mayGrow tells that the pod waits for a group: for one that would fit and cannot grow, or,
// where nothing nearer is known, for one of which it is not known what its nodes have.
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

// tellNow looks at the pod as it is now: since the pods were read, it may have been told, or put on a node.
func (r *Reporter) tellNow(ctx context.Context, read *corev1.Pod, e Explanation, now time.Time) error {
	var pod corev1.Pod
	if err := r.Client.Get(ctx, client.ObjectKeyFromObject(read), &pod); err != nil {
		return client.IgnoreNotFound(err)
	}
	if want, _ := r.changed(&pod, e, now); want != nil && pod.UID == e.UID && pod.Spec.NodeName == "" {
		return r.tell(ctx, &pod, *want)
	}
	return nil
}

// tell writes the condition, and then the Event: who dies in between has told it once.
func (r *Reporter) tell(ctx context.Context, pod *corev1.Pod, c corev1.PodCondition) error {
	patch, err := json.Marshal(map[string]any{
		// A pod of the same name that came after this one is another.
		"metadata": map[string]any{"uid": pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{c}},
	})
	if err != nil {
		return fmt.Errorf("encoding condition %s of pod %s: %w", c.Type, klog.KObj(pod), err)
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err = r.Client.Status().Patch(ctx, target, client.RawPatch(types.StrategicMergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("telling pod %s what it waits for, by condition %s: %w", klog.KObj(pod), c.Type, err)
	}
	kind := corev1.EventTypeNormal
	if c.Status == corev1.ConditionFalse {
		kind = corev1.EventTypeWarning
	}
	r.Events.Eventf(pod, nil, kind, c.Reason, action, "%s", c.Message)
	klog.FromContext(ctx).V(2).Info("Told a pod what it waits for", "pod", klog.KObj(pod), "reason", c.Reason, "message", c.Message)
	return nil
}
