package explain

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Whatever a pod is told can be read by who sees nothing but the pod.
func TestWhatAPodIsToldIsReadBack(t *testing.T) {
	for _, outcome := range []scaleout.Outcome{
		scaleout.FitsNode, scaleout.FitsStarting, scaleout.NeedsNode, scaleout.Advised, scaleout.Held, scaleout.OverBudget, scaleout.Unused, scaleout.Blocked,
	} {
		pod := &corev1.Pod{}
		pod.Namespace, pod.Name = "research", "train"
		pod.Status.Conditions = []corev1.PodCondition{condition(Explanation{Outcome: outcome, Summary: "why"}, noon)}
		told, at, known := Told(pod)
		summary := "why"
		if outcome == scaleout.FitsNode {
			summary = "a node has room for it now: the scheduler will put it there or elsewhere" // it names no node
		}
		if !known || told.Outcome != outcome || told.Summary != summary || told.Pod.String() != "research/train" || !at.Equal(noon) {
			t.Errorf("told %s, read %s %q of %s at %s, %v", outcome, told.Outcome, told.Summary, told.Pod, at, known)
		}
	}
	if _, _, known := Told(&corev1.Pod{}); known {
		t.Error("a pod that was told nothing is said to be told something")
	}
}
