package view

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// nominatedPod waits for a device, and the scheduler has nominated it.
func nominatedPod(name, node string) corev1.Pod {
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &pod.Name}}
	pod.Status.NominatedNodeName = node
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
	return pod
}

// A nomination counts for a node that exists, and for minutes: Kubernetes 1.34 never clears it.
func TestNominationsCountForMinutes(t *testing.T) {
	all := &objects{}
	dying := testNode("dying", time.Hour, nil)
	dying.DeletionTimestamp = &metav1.Time{Time: t0}
	for _, node := range []*corev1.Node{testNode("n", time.Hour, nil), testNode("m", time.Hour, nil), dying, ours("ends", StepEnding), ours("cordoned", StepCordoned)} {
		all.nodes.Items = append(all.nodes.Items, *node)
	}
	all.pods.Items = []corev1.Pod{nominatedPod("p", "n"), nominatedPod("gone", "gone"), nominatedPod("dying", "dying"), nominatedPod("ends", "ends"), nominatedPod("cordoned", "cordoned")}
	plain := nominatedPod("no-devices", "n")
	plain.Spec.ResourceClaims = nil
	bound := nominatedPod("bound", "n")
	bound.Spec.NodeName = "n"
	failed := nominatedPod("failed", "n")
	failed.Status.Phase = corev1.PodFailed
	all.pods.Items = append(all.pods.Items, plain, bound, failed)
	memo := NewMemo()
	look := func(after time.Duration) *View {
		defer memo.endRead()
		return newReading(all, Options{Driver: testDriver, Now: t0.Add(after), Memo: memo}).view()
	}
	check := func(when string, v *View, nodes, outdated int, on string) {
		t.Helper()
		if len(v.Nominated.Nodes) != nodes || len(v.Nominated.Outdated) != outdated || v.Snapshot.Nominated["p"] != on {
			t.Errorf("%s: %+v, and p is planned on %q; want %d nominations, %d of them outdated, and p on %q", when, v.Nominated, v.Snapshot.Nominated["p"], nodes, outdated, on)
		}
		for _, pod := range all.pods.Items {
			if hold := v.Held[pod.UID]; hold.Why != "" {
				t.Errorf("%s: pod %s is held: %s", when, pod.Name, hold.Why)
			}
		}
	}
	v := look(0)
	check("at first", v, 3, 0, "n")
	if !v.Again.Equal(t0.Add(nominationHolds)) {
		t.Errorf("it is looked again at %v", v.Again)
	}
	all.claims.Items = nil
	check("a moment before", look(nominationHolds-time.Second), 3, 0, "n")
	check("for long", look(nominationHolds), 0, 3, "")
	all.pods.Items[0].Status.NominatedNodeName = "m"
	check("for another node", look(nominationHolds+time.Second), 1, 2, "m")
	all.pods.Items[0].Status.NominatedNodeName = ""
	look(nominationHolds + 2*time.Second)
	all.pods.Items[0].Status.NominatedNodeName = "m"
	check("anew", look(2*nominationHolds), 1, 2, "m")
	if fresh := newReading(all, Options{Driver: testDriver, Now: t0.Add(time.Hour), Memo: NewMemo()}).view(); len(fresh.Nominated.Nodes) != 3 {
		t.Errorf("a new process sees %+v", fresh.Nominated)
	}
}
