package view

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// expendable is the priority below which Cluster Autoscaler adds no nodes for a pod: the default
// of its --expendable-pods-priority-cutoff. Such pods are to fill what is free anyhow.
const expendable = -10

// held are the pending pods for which a node would be of no use now, each with a sentence for its
// owner: somebody else has to do something first, and may never do it.
func (r *reading) held() map[types.UID]string {
	claims := make(map[types.NamespacedName]bool, len(r.claims.Items))
	for i := range r.claims.Items {
		claims[types.NamespacedName{Namespace: r.claims.Items[i].Namespace, Name: r.claims.Items[i].Name}] = true
	}
	held := map[types.UID]string{}
	for _, pod := range r.pods.pending {
		if why := heldBy(pod, claims); why != "" {
			held[pod.UID] = why
		}
	}
	return held
}

// heldBy is why a pod is held; empty: it is not. A pod with scheduling gates is the planner's to tell.
func heldBy(pod *corev1.Pod, claims map[types.NamespacedName]bool) string {
	if len(pod.Spec.SchedulingGates) > 0 {
		return ""
	}
	if pod.Spec.Priority != nil && *pod.Spec.Priority < expendable {
		return fmt.Sprintf("its priority is %d, and for pods below %d no nodes are added: give it a PriorityClass of %d or more, or wait until devices are free",
			*pod.Spec.Priority, expendable, expendable)
	}
	if node := pod.Status.NominatedNodeName; node != "" {
		return fmt.Sprintf("the scheduler makes room for it on node %s", node)
	}
	if claim := missingClaim(pod, claims); claim != "" {
		return fmt.Sprintf("its claim %q is not made: see the pod's Events for what refuses it, such as a ResourceQuota", claim)
	}
	if !Tried(pod) {
		return fmt.Sprintf("scheduler %q has not tried to place it: see that a scheduler of that name runs", pod.Spec.SchedulerName)
	}
	return ""
}

// missingClaim is what the pod calls a claim that is to be made of a template, and is not there;
// empty: there is none. A claim that the pod names itself is the planner's to tell.
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

// Tried tells that the scheduler has found no node for the pod, or failed over it.
func Tried(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c.Status == corev1.ConditionFalse && c.Reason != corev1.PodReasonSchedulingGated
		}
	}
	return false
}
