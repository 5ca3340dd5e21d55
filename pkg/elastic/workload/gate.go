package workload

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Gated reports whether a pod has the readiness gate mica.gpu/serving, which the controller opens.
func Gated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == v1alpha1.ConditionServing })
}

// gate returns the state and the reason of the gate's condition.
func gate(pod *corev1.Pod) (Gate, string) {
	if !Gated(pod) {
		return Ungated, ""
	}
	is := condition(pod, v1alpha1.ConditionServing)
	switch {
	case is.Status == corev1.ConditionTrue:
		return Open, is.Reason
	case loaded(pod):
		return Standby, is.Reason
	}
	return Closed, is.Reason
}

// loaded reports whether the containers are ready and all other gates are open.
func loaded(pod *corev1.Pod) bool {
	for _, g := range pod.Spec.ReadinessGates {
		if g.ConditionType != v1alpha1.ConditionServing && condition(pod, g.ConditionType).Status != corev1.ConditionTrue {
			return false
		}
	}
	return condition(pod, corev1.ContainersReady).Status == corev1.ConditionTrue
}
