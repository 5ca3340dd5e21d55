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
	// maxDelays is how many pods are written in a pass.
	maxDelays = 200
	// delayLease is how long a pod is kept from Cluster Autoscaler after the last renewal. The admission
	// policy gives a new pod less than that, since it cannot know which driver the pod's claims are for.
	delayLease = time.Hour
)

// delays keep pods under a budget from Cluster Autoscaler, which knows of no budget and would add nodes
// for them as soon as a group has had one. Cluster Autoscaler ignores a pod that is younger than the
// annotation says (core/static_autoscaler.go, filterOutYoungPods); the scheduler does not. Pods for which
// no group would be made to grow here are left to it. Pods that it could add a node for now come first.
// The time is when the next one is to be renewed; zero: none is.
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

// keptFromAutoscaler are the pods under a budget that fit on a new node of a group that is made to grow
// here, as far as its nodes are known. Cluster Autoscaler alone may know a node for the others.
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

// renewDelay reports whether the delay of a pod that is kept from Cluster Autoscaler is to be set now, and
// otherwise when. What the controller or its admission policy has set is renewed when less than half of it
// is left. A delay of the user's own is replaced only when it ends sooner than that.
func (s *Situation) renewDelay(pod *corev1.Pod) (bool, time.Time) {
	if s.FailClosed {
		return pod.Annotations[v1alpha1.AnnotationScaleUpDelay] != v1alpha1.ScaleUpDelayForever, time.Time{}
	}
	delay, age, lease := view.Delay(pod), view.Age(pod, s.Now), delayLease
	if view.DelayedByUs(pod) {
		lease = min(delay, delayLease)
		if delay > age+delayLease+time.Minute {
			return true, time.Time{} // it is of a time when delays were to last for ever
		}
	}
	left := delay - age
	if left <= 0 || left < lease/2 {
		return true, time.Time{}
	}
	return false, s.Now.Add(left - lease/2 + time.Second)
}

// keep sets the delay of a pod. A value of the user's own is kept beside it.
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

// endDelay gives a pod back the delay that it had.
func endDelay(pod *corev1.Pod) delay {
	return delay{Pod: client.ObjectKeyFromObject(pod), UID: pod.UID, Value: pod.Annotations[v1alpha1.AnnotationDelayBefore]}
}

// delay sets the delay of a pod.
type delay struct {
	unpromised
	Pod types.NamespacedName
	UID types.UID
	// Value is the annotation's; empty: none.
	Value string
	// Before is the value that comes back when the pod is left to Cluster Autoscaler; nil: it is left now.
	Before *string
}

func (a delay) String() string {
	if a.Before != nil {
		return fmt.Sprintf("keep pod %s from Cluster Autoscaler until it is %s old: it is under a budget", a.Pod, a.Value)
	}
	return fmt.Sprintf("leave pod %s to Cluster Autoscaler again", a.Pod)
}

func (delay) group() string { return "" }

// annotations are those that the pod has afterwards; nil is none.
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

// do writes by pods/status, which takes annotations, too: the controller may not write pods otherwise.
func (a delay) do(ctx context.Context, e *Executor, _ *Result) error {
	// A pod of the same name that came after this one is another.
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
