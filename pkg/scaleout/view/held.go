package view

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// expendable is the priority below which Cluster Autoscaler adds no nodes for a pod: the default of its
// --expendable-pods-priority-cutoff.
const expendable = -10

// held are the pending pods for which no node would help now, with the reasons: something else has to happen first.
func (r *reading) held() map[types.UID]scaleout.Hold {
	claims := make(map[types.NamespacedName]bool, len(r.claims.Items))
	for i := range r.claims.Items {
		claims[types.NamespacedName{Namespace: r.claims.Items[i].Namespace, Name: r.claims.Items[i].Name}] = true
	}
	workloads := unusedBy(r.groups.Items)
	held := map[types.UID]scaleout.Hold{}
	for _, pod := range r.pods.pending {
		if why := heldBy(pod, claims, r.nominated.Nodes[pod.UID] != ""); why != "" {
			held[pod.UID] = scaleout.Hold{Why: why}
		} else if why := unused(pod, r.Now); why != "" {
			held[pod.UID] = scaleout.Hold{Why: why, Unused: true}
		} else if why := workloads.hold(pod, r.Now); why != "" {
			held[pod.UID] = scaleout.Hold{Why: why}
		}
	}
	return held
}

// heldBy says why a pod is held; empty: it is not. The planner handles scheduling gates, and places nominated pods on
// their nodes.
func heldBy(pod *corev1.Pod, claims map[types.NamespacedName]bool, nominated bool) string {
	if len(pod.Spec.SchedulingGates) > 0 {
		return ""
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority < expendable {
		return fmt.Sprintf("its priority is %d, and for pods below %d no nodes are added: give it a PriorityClass of %d or more, or wait until devices are free",
			*pod.Spec.Priority, expendable, expendable)
	}
	if claim := missingClaim(pod, claims); claim != "" {
		return fmt.Sprintf("its claim %q is not made: see the pod's Events for what refuses it, such as a ResourceQuota", claim)
	}
	if !Tried(pod) && !nominated {
		return fmt.Sprintf("scheduler %q has not tried to place it: see that a scheduler of that name runs", pod.Spec.SchedulerName)
	}
	return ""
}

const (
	// unusedAfter is how long a node may have room for a pod before it counts as unused: the scheduler retries every
	// pod after five minutes, even if nothing has changed.
	unusedAfter = 6 * time.Minute
	// unusedHold and unusedMost are the shortest and the longest time until another node is requested.
	unusedHold = time.Hour
	unusedMost = 24 * time.Hour
)

// unused says why no further node is requested for a pod: the scheduler did not use one that had room. Empty: that did
// not happen, or another node is due. The pod's condition keeps the fact for the next leader. Another node is due when
// the pod is twice as old, so that the wait doubles.
func unused(pod *corev1.Pod, now time.Time) string {
	reported := condition(pod, v1alpha1.ConditionScaleUp)
	if reported == nil {
		return ""
	}
	switch reported.Reason {
	case v1alpha1.ReasonFitsNode:
		if now.Sub(reported.LastProbeTime.Time) < unusedAfter {
			return ""
		}
		return excerpt.Of(fmt.Sprintf("a node has had room for it for %s, and the scheduler has not put it there; it says: %s: fix that; another node is requested after an hour, or when the pod is twice as old, a day at most",
			unusedAfter, schedulerSays(pod)), excerpt.MaxEvent)
	case v1alpha1.ReasonNodeUnused:
		since := reported.LastTransitionTime.Time
		if now.Before(since.Add(min(max(since.Sub(pod.CreationTimestamp.Time), unusedHold), unusedMost))) {
			return reported.Message
		}
	}
	return ""
}

// schedulerSays is the scheduler's reason for not placing the pod.
func schedulerSays(pod *corev1.Pod) string {
	if c := condition(pod, corev1.PodScheduled); c != nil && c.Message != "" {
		return c.Message
	}
	return "nothing"
}

// missingClaim is the pod's name for a claim that should have been made from a template; empty: none is missing. The
// planner reports missing claims that the pod names itself.
func missingClaim(pod *corev1.Pod, claims map[types.NamespacedName]bool) string {
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		if podClaim.ResourceClaimTemplateName == nil {
			continue
		}
		name, _, err := resourceclaim.Name(pod, podClaim)
		if err == nil && name == nil {
			continue // made without a claim, on purpose
		}
		if err != nil || !claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}] {
			return podClaim.Name
		}
	}
	return ""
}

// Tried reports whether the scheduler has found no node for the pod, or failed over it.
func Tried(pod *corev1.Pod) bool {
	c := condition(pod, corev1.PodScheduled)
	return c != nil && c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated
}

func condition(pod *corev1.Pod, of corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == of {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
