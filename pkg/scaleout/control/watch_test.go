package control

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestOnlyWhatChangesADecisionMarksTheLoop(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: 1}}
		change(p)
		return p
	}
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"}}
		change(n)
		return n
	}
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue}
	beat := ready
	beat.LastHeartbeatTime = metav1.NewTime(time.Unix(1, 0))
	same := func(*corev1.Pod) {}
	for name, test := range map[string]struct {
		before, after any
		want          bool
	}{
		"a pod's condition": {pod(same), pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: "mica.gpu/ScaleUp"}}
		}), false},
		"the scheduler finds no node": {pod(same), pod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
		}), true},
		"a pod preempts":    {pod(same), pod(func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" }), true},
		"a pod gets a node": {pod(same), pod(func(p *corev1.Pod) { p.Spec.NodeName = "n" }), true},
		"a pod ends":        {pod(same), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"a pod is deleted":  {pod(same), pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }), true},
		"a pod is under a budget": {pod(same), pod(func(p *corev1.Pod) {
			p.Annotations = map[string]string{"cluster-autoscaler.kubernetes.io/pod-scale-up-delay": "876000h"}
		}), true},
		"a pod gets a claim": {pod(same), pod(func(p *corev1.Pod) {
			p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}}
		}), true},
		"a pod's gate opens": {pod(func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }), pod(same), true},
		"another pod":        {pod(same), pod(func(p *corev1.Pod) { p.UID = "v" }), true},
		"a node's heartbeat": {
			node(func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{ready} }),
			node(func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{beat} }), false},
		"a node becomes ready": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Status.Conditions = []corev1.NodeCondition{ready} }), true},
		"a node is cordoned":   {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), true},
		"a node's taint":       {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "k"}} }), true},
		"a node's label":       {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }), true},
		"a node's annotation":  {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }), true},
		"a node's resources": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1")}
		}), true},
		"anything else": {&resourceapi.ResourceSlice{}, &resourceapi.ResourceSlice{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := matters(test.before, test.after); got != test.want {
				t.Errorf("it matters: %v, want %v", got, test.want)
			}
		})
	}
}
