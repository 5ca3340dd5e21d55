package view

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// What a pod waits for that is no node. Cluster Autoscaler, too, looks at pods only after the
// scheduler has, and the scheduler only after all claims are made.
func TestAPodIsHeldUntilANodeWouldHelpIt(t *testing.T) {
	scheduled := func(status corev1.ConditionStatus, reason string) corev1.PodCondition {
		return corev1.PodCondition{Type: corev1.PodScheduled, Status: status, Reason: reason}
	}
	for name, test := range map[string]struct {
		change    func(*corev1.Pod)
		nominated bool
		want      string
	}{
		"tried":                   {func(*corev1.Pod) {}, false, ""},
		"about to be on a node":   {func(pod *corev1.Pod) { pod.Status.Conditions = nil }, true, ""},
		"claim is refused":        {func(pod *corev1.Pod) { pod.Status.ResourceClaimStatuses = nil }, false, `its claim "gpu" is not made`},
		"claim is gone":           {func(pod *corev1.Pod) { pod.Status.ResourceClaimStatuses[0].ResourceClaimName = ptr.To("gone") }, false, `its claim "gpu" is not made`},
		"claim is not needed":     {func(pod *corev1.Pod) { pod.Status.ResourceClaimStatuses[0].ResourceClaimName = nil }, false, ""},
		"no such scheduler":       {func(pod *corev1.Pod) { pod.Spec.SchedulerName, pod.Status.Conditions = "none", nil }, false, `scheduler "none" has not tried`},
		"scheduler fails over it": {func(pod *corev1.Pod) { pod.Status.Conditions[0].Reason = corev1.PodReasonSchedulerError }, false, ""},
		"on a node":               {func(pod *corev1.Pod) { pod.Status.Conditions[0] = scheduled(corev1.ConditionTrue, "") }, false, "has not tried"},
		"gates are the planner's": {func(pod *corev1.Pod) {
			pod.Spec.SchedulingGates, pod.Status.Conditions = []corev1.PodSchedulingGate{{Name: "g"}}, nil
		}, false, ""},
		"gates have just gone": {func(pod *corev1.Pod) { pod.Status.Conditions[0].Reason = corev1.PodReasonSchedulingGated }, false, "has not tried"},
		"nominated long ago":   {func(pod *corev1.Pod) { pod.Status.NominatedNodeName = "n1" }, false, ""},
		"expendable":           {func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To[int32](-11) }, false, "its priority is -11"},
		"lowest that is not":   {func(pod *corev1.Pod) { pod.Spec.Priority = ptr.To[int32](-10) }, false, ""},
		"claim that the pod names": {func(pod *corev1.Pod) {
			pod.Spec.ResourceClaims[0] = corev1.PodResourceClaim{Name: "gpu", ResourceClaimName: ptr.To("none")}
		}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: ptr.To("one")}}
			pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: ptr.To("p-gpu")}}
			pod.Status.Conditions = []corev1.PodCondition{scheduled(corev1.ConditionFalse, corev1.PodReasonUnschedulable)}
			test.change(pod)
			got := heldBy(pod, map[types.NamespacedName]bool{{Namespace: "default", Name: "p-gpu"}: true}, test.nominated)
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("held by %q, want %q", got, test.want)
			}
		})
	}
}

func TestNoFurtherNodeForAWhileAfterOneWasNotUsed(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		// age is the pod's; since is how long ago the condition became so.
		age, since time.Duration
		want       bool
	}{
		"a node has room":                   {v1alpha1.ReasonFitsNode, time.Hour, 5 * time.Minute, false},
		"for long":                          {v1alpha1.ReasonFitsNode, time.Hour, 6 * time.Minute, true},
		"another is asked for":              {"GPUScaleUpPlanned", time.Hour, time.Hour, false},
		"it was not used":                   {v1alpha1.ReasonNodeUnused, 70 * time.Minute, 59 * time.Minute, true},
		"an hour ago":                       {v1alpha1.ReasonNodeUnused, 70 * time.Minute, time.Hour, false},
		"an old pod":                        {v1alpha1.ReasonNodeUnused, 7 * time.Hour, 3 * time.Hour, true},
		"an old pod, which is twice as old": {v1alpha1.ReasonNodeUnused, 7 * time.Hour, 7 * time.Hour / 2, false},
		"a very old pod":                    {v1alpha1.ReasonNodeUnused, 900 * time.Hour, 24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(t0.Add(-test.age))}}
			at := metav1.NewTime(t0.Add(-test.since))
			pod.Status.Conditions = []corev1.PodCondition{
				{Type: v1alpha1.ConditionScaleUp, Reason: test.reason, Message: "told", LastTransitionTime: at, LastProbeTime: at},
				{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable, Message: "unbound volume"},
			}
			why := unused(pod, t0)
			if (why != "") != test.want || why != "" && why != "told" && !strings.Contains(why, "unbound volume") {
				t.Errorf("held by %q, want that it is held: %v", why, test.want)
			}
		})
	}
}
