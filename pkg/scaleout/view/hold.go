package view

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// holdLease is how long a protection or a cordon lasts without renewal. Neither Cluster Autoscaler's annotation nor a
// cordon ends by itself, and an unneeded node can cost a hundred dollars per hour.
const holdLease = 2 * time.Hour

// Held reports whether the controller has protected or cordoned a node.
func Held(node *corev1.Node) bool {
	_, protected := node.Annotations[v1alpha1.AnnotationProtected]
	return protected || MarkOf(node).Cordons()
}

// HoldExpired reports whether the controller holds a node and has not renewed the hold in time. A hold without a valid
// time has expired.
func HoldExpired(node *corev1.Node, now time.Time) bool {
	return Held(node) && !HeldUntil(node).After(now)
}

// HoldLapses reports whether a hold needs a renewal: less than half of its time is left, or more than any renewal sets,
// because a clock was wrong.
func HoldLapses(node *corev1.Node, now time.Time) bool {
	left := HeldUntil(node).Sub(now)
	return left < holdLease/2 || left > holdLease+time.Minute
}

// Hold renews the hold of a node for another lease.
func Hold(node *corev1.Node, now time.Time) {
	metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationHeldUntil, now.Add(holdLease).UTC().Format(time.RFC3339))
}

// Unprotect removes the controller's protection from a node. An administrator's stays.
func Unprotect(node *corev1.Node) {
	if _, ours := node.Annotations[v1alpha1.AnnotationProtected]; ours {
		delete(node.Annotations, v1alpha1.AnnotationProtected)
		delete(node.Annotations, v1alpha1.AnnotationScaleDownDisabled)
	}
	if !Held(node) {
		delete(node.Annotations, v1alpha1.AnnotationHeldUntil)
	}
}

// Unmark removes the mark of its end from a node, and the controller's own cordon. An administrator's cordon stays.
func Unmark(node *corev1.Node) {
	if MarkOf(node).Cordons() {
		node.Spec.Unschedulable = false
	}
	delete(node.Annotations, v1alpha1.AnnotationScaleIn)
	if !Held(node) {
		delete(node.Annotations, v1alpha1.AnnotationHeldUntil)
	}
}

// HeldUntil is when the hold of a node expires; zero: the node has no valid time.
func HeldUntil(node *corev1.Node) time.Time {
	until, err := time.Parse(time.RFC3339, node.Annotations[v1alpha1.AnnotationHeldUntil])
	if err != nil {
		return time.Time{}
	}
	return until
}
