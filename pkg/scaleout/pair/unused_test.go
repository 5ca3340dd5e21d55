package pair

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// foundUnused has pods of that many workloads that have just left a node unused, and a group with these entries.
func foundUnused(now time.Time, workloads int, entries ...v1alpha1.UnusedBy) *Situation {
	object := func(name string, pairing v1alpha1.Pairing) view.Group {
		return view.Group{Object: &v1alpha1.GPUNodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUNodeGroupSpec{Pairing: pairing}}}
	}
	s := &Situation{Now: now, View: &view.View{GroupStates: []view.Group{
		object("observed", v1alpha1.PairingObserve), object("small", ""), object("large", ""), object("larger", ""),
	}}}
	s.View.GroupStates[2].Object.Status.UnusedBy = entries
	kind := scaleout.Kind{ID: "kind", Groups: []scaleout.GroupFit{
		{Group: "observed", PerNode: 1}, {Group: "small", Miss: &fit.Miss{}}, {Group: "large", PerNode: 1}, {Group: "larger", PerNode: 1},
	}}
	for i := range workloads {
		pod := unusedPod(fmt.Sprintf("pod-%d", i), now)
		s.View.Pending = append(s.View.Pending, pod)
		kind.Pods = append(kind.Pods, scaleout.PodDecision{Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, Outcome: scaleout.Unused})
	}
	s.Decision.Kinds = []scaleout.Kind{kind}
	s.index = newIndex(s)
	return s
}

func unusedPod(name string, now time.Time) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: v1alpha1.ConditionScaleUp, Reason: v1alpha1.ReasonFitsNode, LastProbeTime: metav1.NewTime(now.Add(-10 * time.Minute))},
		}},
	}
}

func TestAGroupRemembersWorkloadsThatLeftNodesUnused(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before := view.UnusedAgain(nil, unusedPod("pod-0", now), now)
	bound := func(after time.Duration) *corev1.Pod {
		pod := unusedPod("pod-0", now)
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(now.Add(after))}}
		return pod
	}
	for name, test := range map[string]struct {
		after time.Duration
		pods  int
		bound *corev1.Pod
		// nodes is the count of the one entry. 0: there is no entry.
		nodes int32
	}{
		"it goes on":               {30 * time.Minute, 0, nil, 1},
		"the same node":            {59 * time.Minute, 1, nil, 1},
		"the next node":            {time.Hour, 1, nil, 2},
		"remembered":               {25*time.Hour - time.Second, 0, nil, 1},
		"forgotten":                {25 * time.Hour, 0, nil, 0},
		"a node is used":           {30 * time.Minute, 0, bound(20 * time.Minute), 0},
		"a node was used before":   {30 * time.Minute, 0, bound(-time.Hour), 1},
		"used by another workload": {30 * time.Minute, 0, func() *corev1.Pod { p := bound(20 * time.Minute); p.Name = "other"; return p }(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := foundUnused(now.Add(test.after), test.pods, before)
			if test.bound != nil {
				s.View.Nodes = []scaleout.Node{{Object: &corev1.Node{}, Pods: []*corev1.Pod{test.bound}}}
			}
			got := Decide(*s).Status["large"].UnusedBy
			if test.nodes == 0 && len(got) > 0 || test.nodes > 0 && (len(got) != 1 || got[0].Nodes != test.nodes) {
				t.Errorf("the group has %+v, want one of %d nodes", got, test.nodes)
			}
		})
	}
}

func TestAGroupRemembersABoundedNumberOfWorkloads(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	oldest := view.UnusedAgain(nil, unusedPod("oldest", now), now.Add(-30*time.Minute))
	for workloads, wantOldest := range map[int]bool{v1alpha1.MaxUnusedBy - 1: true, v1alpha1.MaxUnusedBy: false} {
		status := Decide(*foundUnused(now, workloads, oldest)).Status
		got := status["large"].UnusedBy
		if len(got) != v1alpha1.MaxUnusedBy || (got[0].Workload == oldest.Workload) != wantOldest {
			t.Errorf("with %d more there are %d entries, the first for %s; want %d with the oldest: %v", workloads, len(got), got[0].Workload, v1alpha1.MaxUnusedBy, wantOldest)
		}
		if n := len(status["observed"].UnusedBy) + len(status["larger"].UnusedBy); n > 0 {
			t.Errorf("groups that do not grow first for the pods have %d entries", n)
		}
	}
}
