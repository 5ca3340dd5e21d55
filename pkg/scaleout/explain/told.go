package explain

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// outcomes are those that the condition's reasons stand for.
var outcomes = map[string]scaleout.Outcome{
	reasonFits: scaleout.FitsNode, reasonWaiting: scaleout.FitsStarting, reasonPlanned: scaleout.NeedsNode,
	reasonAdvised: scaleout.Advised, reasonHeld: scaleout.Held, reasonBudget: scaleout.OverBudget, reasonUnused: scaleout.Unused,
	reasonBlocked: scaleout.Blocked, reasonNoFit: scaleout.Blocked,
}

// Told is what the controller has told a pod, and when; false where it has told it nothing that is
// known. It has a summary and no verdicts, and is for those who may see the pod and little else.
func Told(pod *corev1.Pod) (Explanation, time.Time, bool) {
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == v1alpha1.ConditionScaleUp })
	if i < 0 {
		return Explanation{}, time.Time{}, false
	}
	told := pod.Status.Conditions[i]
	outcome, known := outcomes[told.Reason]
	return Explanation{
		Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID,
		Outcome: outcome, Summary: told.Message, Verdicts: []Verdict{},
	}, cmp.Or(told.LastProbeTime.Time, told.LastTransitionTime.Time), known
}
