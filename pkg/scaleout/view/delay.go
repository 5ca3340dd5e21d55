package view

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Delay is the age that a pod must have before Cluster Autoscaler adds a node for it, by its annotation. Zero: the
// annotation is missing, or Cluster Autoscaler does not accept it (filterOutYoungPods in core/static_autoscaler.go of
// 1.35).
func Delay(pod *corev1.Pod) time.Duration {
	delay, err := time.ParseDuration(pod.Annotations[v1alpha1.AnnotationScaleUpDelay])
	if err != nil {
		return 0
	}
	return max(delay, 0)
}

// Age is that of a pod; zero if the clock is behind the API server's.
func Age(pod *corev1.Pod, now time.Time) time.Duration {
	return max(now.Sub(pod.CreationTimestamp.Time), 0)
}

// Delayed reports whether Cluster Autoscaler adds no node for the pod yet.
func Delayed(pod *corev1.Pod, now time.Time) bool {
	return Delay(pod) > Age(pod, now)
}

// DelayedByUs reports whether the controller or its admission policy has set the pod's delay.
func DelayedByUs(pod *corev1.Pod) bool {
	_, marked := pod.Annotations[v1alpha1.AnnotationDelayBefore]
	return marked || pod.Annotations[v1alpha1.AnnotationScaleUpDelay] == v1alpha1.ScaleUpDelayForever
}
