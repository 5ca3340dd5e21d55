package control

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Cluster Autoscaler's actions show which of its flags is too short for a group.
func TestAGroupReportsThatItOutlastsTheAutoscaler(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	node := func(age time.Duration, closed bool) view.NodeState {
		n := view.NodeState{Ready: true, Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", CreationTimestamp: metav1.NewTime(now.Add(-age))}}}
		if closed {
			n.Missing = []string{"a slice"}
			n.Object.Spec.Taints = []corev1.Taint{{Key: v1alpha1.TaintStartup}}
		}
		return n
	}
	timedOut := autoscaler.Group{Backoff: true, Code: "timeout", Message: "timeout: Scale-up timed out for node group g after 15m10s"}
	outlasted := []metav1.Condition{{
		Type: v1alpha1.ConditionOutlastsAutoscaler, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProvisionTime, Message: "as it was",
		LastTransitionTime: metav1.NewTime(now.Add(-time.Hour)),
	}}
	for name, test := range map[string]struct {
		said   autoscaler.Group
		nodes  []view.NodeState
		before []metav1.Condition
		// want is empty for no condition.
		want   metav1.ConditionStatus
		reason string
		text   []string
	}{
		"nothing was ever wrong":       {said: autoscaler.Group{NotStarted: 1, Unready: 1}, nodes: []view.NodeState{node(20*time.Minute, true)}},
		"another backoff":              {said: autoscaler.Group{Backoff: true, Code: "OutOfCapacity"}},
		"the request has timed out":    {said: timedOut, want: metav1.ConditionTrue, reason: v1alpha1.ReasonProvisionTime, text: []string{"--max-node-provision-time", "15m10s", "30m0s"}},
		"the node is given up":         {said: autoscaler.Group{Unready: 1}, nodes: []view.NodeState{node(15*time.Minute, true)}, want: metav1.ConditionTrue, reason: v1alpha1.ReasonStartupTime, text: []string{"node n", "15m0s ago", "--max-node-startup-time", "30m0s"}},
		"a node that it has not seen":  {said: autoscaler.Group{Unready: 1}, nodes: []view.NodeState{node(4*time.Minute, true)}},
		"another node is ill":          {said: autoscaler.Group{Unready: 1}, nodes: []view.NodeState{node(15*time.Minute, false)}},
		"it was so":                    {before: outlasted, nodes: []view.NodeState{node(2*time.Hour, false)}, want: metav1.ConditionTrue, reason: v1alpha1.ReasonProvisionTime, text: []string{"as it was"}},
		"a newer node was fast enough": {before: outlasted, nodes: []view.NodeState{node(10*time.Minute, false)}, want: metav1.ConditionFalse, reason: v1alpha1.ReasonWaitsLongEnough},
		"the other flag, too":          {before: outlasted, said: autoscaler.Group{Unready: 1}, nodes: []view.NodeState{node(15*time.Minute, true)}, want: metav1.ConditionTrue, reason: v1alpha1.ReasonStartupTime},
	} {
		t.Run(name, func(t *testing.T) {
			r := groupReport{group: view.Group{Object: group("g6"), Nodes: test.nodes}, now: now, autoscaler: test.said}
			got := r.outlastsAutoscaler(test.before)
			if got == nil || test.want == "" {
				if got != nil || test.want != "" {
					t.Fatalf("the condition is %+v, want %q", got, test.want)
				}
				return
			}
			if got.Status != test.want || got.Reason != test.reason {
				t.Errorf("it is %s for %s, want %s for %s", got.Status, got.Reason, test.want, test.reason)
			}
			for _, text := range test.text {
				if !strings.Contains(got.Message, text) {
					t.Errorf("%q is not in %q", text, got.Message)
				}
			}
		})
	}
}

// A node that cannot become complete is in Events and in a condition, until it is complete.
func TestAStuckNodeIsReported(t *testing.T) {
	w := newWorld(t, append(oneGPU(1), group("g6"))...)
	kept := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu", Name: "driver"}}
	w.create(kept)
	w.noSlices = true
	w.run(8 * time.Minute)
	w.expectCondition("g6", v1alpha1.ConditionNodesStuck, metav1.ConditionTrue, v1alpha1.ReasonDaemonSetsKeptOff)
	w.expectMessage("g6", v1alpha1.ConditionNodesStuck, "kubectl -n gpu patch daemonset driver ")
	all := w.events()
	w.expectEvents(all, 1, "Warning GPUNodeIncomplete", "")
	w.expectEvents(all, 1, "Warning "+v1alpha1.ReasonDaemonSetsKeptOff, "")
	w.noSlices = false
	w.run(time.Minute)
	w.expectCondition("g6", v1alpha1.ConditionNodesStuck, metav1.ConditionFalse, v1alpha1.ReasonNoneStuck)
}
