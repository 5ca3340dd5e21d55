package helm_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
)

var theController = user.DefaultInfo{Name: "system:serviceaccount:mica:mica-controller"}

const startupTaint = "startup-taint.cluster-autoscaler.kubernetes.io/mica"

// newNode is a node as kubelet registers it in a group with the startup taint.
func newNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "n", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true", "other": "1"},
		},
		Spec: corev1.NodeSpec{
			ProviderID: "aws:///1",
			Taints: []corev1.Taint{
				{Key: "nvidia.com/gpu", Value: "true", Effect: corev1.TaintEffectNoSchedule},
				{Key: startupTaint, Value: "starting", Effect: corev1.TaintEffectNoSchedule},
			},
		},
	}
}

func TestNodePolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "nodes-")
	for name, test := range map[string]struct {
		change func(*corev1.Node)
		want   string // part of the message; "" is accepted
	}{
		"nothing":                   {func(*corev1.Node) {}, ""},
		"the startup taint removed": {func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] }, ""},
		"another taint removed":     {func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[1:] }, "and no other"},
		"a taint added": {func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "x", Effect: "NoExecute"})
		}, "may add none"},
		"the startup taint made stronger": {func(n *corev1.Node) { n.Spec.Taints[1].Effect = corev1.TaintEffectNoExecute }, "may add none"},
		"its annotations set": {func(n *corev1.Node) {
			n.Annotations["mica.gpu/protected-for"] = "claim"
			n.Annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"] = "false"
		}, ""},
		"its annotation removed":     {func(n *corev1.Node) { delete(n.Annotations, "cluster-autoscaler.kubernetes.io/scale-down-disabled") }, ""},
		"all annotations removed":    {func(n *corev1.Node) { n.Annotations = nil }, "and no other"},
		"another annotation set":     {func(n *corev1.Node) { n.Annotations["new"] = "2" }, "and no other"},
		"another annotation changed": {func(n *corev1.Node) { n.Annotations["other"] = "2" }, "and no other"},
		"another annotation removed": {func(n *corev1.Node) { delete(n.Annotations, "other") }, "and no other"},
		"cordoned without a word":    {func(n *corev1.Node) { n.Spec.Unschedulable = true }, "may cordon a node only while"},
		"cordoned as empty": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations["mica.gpu/scale-in"] = "empty 2026-01-01T00:00:00Z"
		}, "may cordon a node only while"},
		"cordoned to end": {func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Annotations["mica.gpu/scale-in"] = "cordoned 2026-01-01T00:00:00Z"
		}, ""},
		"a label":                        {func(n *corev1.Node) { n.Labels["a"] = "c" }, "nothing else"},
		"all labels":                     {func(n *corev1.Node) { n.Labels = nil }, "nothing else"},
		"the machine behind it":          {func(n *corev1.Node) { n.Spec.ProviderID = "aws:///2" }, "nothing else"},
		"a finalizer, to keep it for us": {func(n *corev1.Node) { n.Finalizers = []string{"mica.gpu/x"} }, "nothing else"},
	} {
		t.Run(name, func(t *testing.T) {
			after := newNode()
			test.change(after)
			matched, messages := policy.review(t, review{kind: "Node", object: after, old: newNode(), user: theController})
			refused := strings.Join(messages, "\n")
			if !matched || test.want == "" && refused != "" || !strings.Contains(refused, test.want) {
				t.Errorf("looked at: %t, refused: %q", matched, refused)
			}
		})
	}
	for mark, want := range map[string]string{"": "may uncordon no other", "cordoned 2026-01-01T00:00:00Z": ""} {
		before, after := newNode(), newNode()
		before.Spec.Unschedulable, before.Annotations["mica.gpu/scale-in"] = true, mark
		_, messages := policy.review(t, review{kind: "Node", object: after, old: before, user: theController})
		if refused := strings.Join(messages, "\n"); (refused == "") != (want == "") || !strings.Contains(refused, want) {
			t.Errorf("uncordoning a node with the mark %q is refused: %q", mark, refused)
		}
	}
	if matched, _ := policy.review(t, review{kind: "Node", object: newNode(), old: newNode(), user: user.DefaultInfo{Name: "kubelet"}}); matched {
		t.Error("others than the controller are looked at")
	}
}

// waiting is a pod that the scheduler could not place.
func waiting() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", Labels: map[string]string{"a": "b"}},
		Status: corev1.PodStatus{
			Phase:      corev1.PodPending,
			Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable"}},
		},
	}
}

func TestPodStatusPolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "podstatus-")
	ours := corev1.PodCondition{Type: "mica.gpu/ScaleUp", Status: corev1.ConditionTrue}
	for name, test := range map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"its condition":             {func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, ours) }, ""},
		"the scheduler's condition": {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }, "and no other"},
		"another condition": {func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "Ready"})
		}, "and no other"},
		"no condition left":           {func(p *corev1.Pod) { p.Status.Conditions = nil }, "and no other"},
		"ended":                       {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, "nothing else"},
		"nominated":                   {func(p *corev1.Pod) { p.Status.NominatedNodeName = "n" }, "nothing else"},
		"another claim than its own":  {func(p *corev1.Pod) { p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "c"}} }, "nothing else"},
		"a label on the way":          {func(p *corev1.Pod) { p.Labels["a"] = "c" }, "nothing else"},
		"an address":                  {func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }, "nothing else"},
		"the states of containers":    {func(p *corev1.Pod) { p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true}} }, "nothing else"},
		"everything but its own gone": {func(p *corev1.Pod) { p.Status = corev1.PodStatus{Conditions: []corev1.PodCondition{ours}} }, "nothing else"},
	} {
		t.Run(name, func(t *testing.T) {
			after := waiting()
			test.change(after)
			matched, messages := policy.review(t, review{kind: "Pod", object: after, old: waiting(), user: theController})
			refused := strings.Join(messages, "\n")
			if !matched || test.want == "" && refused != "" || !strings.Contains(refused, test.want) {
				t.Errorf("looked at: %t, refused: %q", matched, refused)
			}
		})
	}
}
