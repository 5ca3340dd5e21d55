package scaleout

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
)

// byNeed orders batches by their first pods: pods that are hard to place come before pods that could take their room.
func byNeed(a, b *pending) int {
	return cmp.Or(
		cmp.Compare(priority(b.pod), priority(a.pod)),
		b.kind.size.compare(a.kind.size),
		byUrgency(a, b),
		cmp.Compare(a.kind.id, b.kind.id),
	)
}

// byUrgency orders pods that are alike.
func byUrgency(a, b *pending) int {
	return cmp.Or(
		cmp.Compare(priority(b.pod), priority(a.pod)),
		a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time),
		cmp.Compare(a.pod.Namespace, b.pod.Namespace),
		cmp.Compare(a.pod.Name, b.pod.Name),
		cmp.Compare(a.pod.UID, b.pod.UID),
	)
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

func falseFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
