package pair

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

const (
	// maxDelays bounds the pods that are written per pass.
	maxDelays = 200
	// delayLease is how long a renewal keeps a pod from Cluster Autoscaler. The admission policy sets less on new pods,
	// because it does not know the driver of their claims.
	delayLease = time.Hour
)

// delays keep pods under a budget from Cluster Autoscaler, which knows no budgets. It ignores a pod that is younger than the
// annotation says (core/static_autoscaler.go, filterOutYoungPods); the scheduler does not. Pods that no group here grows for
// are left to it. Pods without a delay come first. The time is that of the next renewal.
func delays(s *Situation) ([]Action, time.Time) {
	var open, kept []Action
	var again time.Time
	for _, pod := range s.View.Pending {
		if !s.index.kept[pod.UID] {
			if view.DelayedByUs(pod) {
				open = append(open, endDelay(pod))
			}
			continue
		}
		switch renew, at := s.renewDelay(pod); {
		case !renew:
			again = sooner(again, at)
		case view.Delayed(pod, s.Now):
			kept = append(kept, s.keep(pod))
		default:
			open = append(open, s.keep(pod))
		}
	}
	actions := append(open, kept...)
	if len(actions) > maxDelays {
		return actions[:maxDelays], s.Now
	}
	return actions, again
}

// keptFromAutoscaler are the pods under a budget that fit on a new node of a group that grows here and whose nodes are known.
func keptFromAutoscaler(s *Situation) map[types.UID]bool {
	grows := map[string]bool{}
	for i := range s.View.GroupStates {
		group := &s.View.GroupStates[i]
		grows[group.Object.Name] = group.Template != nil && modeFor(group) != observe{}
	}
	kept := map[types.UID]bool{}
	for i := range s.Decision.Kinds {
		kind := &s.Decision.Kinds[i]
		fits := func(fit scaleout.GroupFit) bool { return fit.Miss == nil && grows[fit.Group] }
		if kind.Problem != "" || !slices.ContainsFunc(kind.Groups, fits) {
			continue
		}
		for _, pod := range kind.Pods {
			kept[pod.UID] = slices.ContainsFunc(s.View.Budgets, func(b scaleout.Budget) bool { return b.Binds(pod.Pod.Namespace) })
		}
	}
	return kept
}

// renewDelay reports whether to set the delay of a kept pod now, and otherwise when: when less than half of our lease is left.
// A user's own delay is replaced only if it ends sooner than that.
func (s *Situation) renewDelay(pod *corev1.Pod) (bool, time.Time) {
	if s.FailClosed {
		return pod.Annotations[v1alpha1.AnnotationScaleUpDelay] != v1alpha1.ScaleUpDelayForever, time.Time{}
	}
	delay, age, lease := view.Delay(pod), view.Age(pod, s.Now), delayLease
	if view.DelayedByUs(pod) {
		lease = min(delay, delayLease)
		if delay > age+delayLease+time.Minute {
			return true, time.Time{} // set while FailClosed was true
		}
	}
	left := delay - age
	if left <= 0 || left < lease/2 {
		return true, time.Time{}
	}
	return false, s.Now.Add(left - lease/2 + time.Second)
}

// keep sets the delay of a pod, and keeps a user's value beside it.
func (s *Situation) keep(pod *corev1.Pod) delay {
	value := (view.Age(pod, s.Now) + delayLease).Truncate(time.Second).String()
	if s.FailClosed {
		value = v1alpha1.ScaleUpDelayForever
	}
	before := pod.Annotations[v1alpha1.AnnotationDelayBefore]
	if !view.DelayedByUs(pod) {
		before = pod.Annotations[v1alpha1.AnnotationScaleUpDelay]
	}
	return delay{Pod: client.ObjectKeyFromObject(pod), UID: pod.UID, Value: value, Before: &before}
}

// endDelay restores a pod's own delay.
func endDelay(pod *corev1.Pod) delay {
	return delay{Pod: client.ObjectKeyFromObject(pod), UID: pod.UID, Value: pod.Annotations[v1alpha1.AnnotationDelayBefore]}
}

// delay sets the delay of a pod.
type delay struct {
	unpromised
	ungrouped
	Pod types.NamespacedName
	UID types.UID
	// Value is the annotation's. Empty: none.
	Value string
	// Before is the value to restore later. Nil: the pod is left to Cluster Autoscaler now.
	Before *string
}

func (a delay) String() string {
	if a.Before != nil {
		return fmt.Sprintf("keep pod %s from Cluster Autoscaler until it is %s old: it is under a budget", a.Pod, a.Value)
	}
	return fmt.Sprintf("leave pod %s to Cluster Autoscaler again", a.Pod)
}

// annotations are the pod's afterwards. Nil removes one.
func (a delay) annotations() map[string]any {
	after := map[string]any{v1alpha1.AnnotationScaleUpDelay: nil, v1alpha1.AnnotationDelayBefore: nil}
	if a.Value != "" {
		after[v1alpha1.AnnotationScaleUpDelay] = a.Value
	}
	if a.Before != nil {
		after[v1alpha1.AnnotationDelayBefore] = *a.Before
	}
	return after
}

// do patches pods/status, which accepts annotations, because the controller has no right to write pods.
func (a delay) do(ctx context.Context, e *Executor, _ *Result) error {
	// The UID excludes a newer pod of the same name.
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": a.UID, "annotations": a.annotations()}})
	if err != nil {
		return fmt.Errorf("encode annotation %s of pod %s: %w", v1alpha1.AnnotationScaleUpDelay, a.Pod, err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Pod.Namespace, Name: a.Pod.Name}}
	err = e.Client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
