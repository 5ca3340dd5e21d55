package helm_test

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mica-gpu/mica/test/admission"
)

// heldNode is one that the controller has protected and cordoned.
func heldNode() *corev1.Node {
	node := newNode()
	maps.Copy(node.Annotations, map[string]string{
		"mica.gpu/protected-for": "use", "mica.gpu/held-until": "2026-01-01T02:00:00Z", "mica.gpu/scale-in": "cordoned 2026-01-01T00:00:00Z",
	})
	node.Spec.Unschedulable = true
	return node
}

func TestReleasePolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "mica-controller-release")
	const disabled = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
	released := func(n *corev1.Node) {
		n.Annotations, n.Spec.Unschedulable = map[string]string{"other": "1"}, false
	}
	for name, test := range map[string]struct {
		given, change func(*corev1.Node)
		want          string // part of the message; "" is accepted
	}{
		"all taken back":             {nil, released, ""},
		"the protection taken back":  {nil, func(n *corev1.Node) { delete(n.Annotations, disabled); delete(n.Annotations, "mica.gpu/protected-for") }, ""},
		"another's protection":       {func(n *corev1.Node) { delete(n.Annotations, "mica.gpu/protected-for") }, released, "and no other"},
		"another's cordon":           {func(n *corev1.Node) { delete(n.Annotations, "mica.gpu/scale-in") }, released, "and no other"},
		"a cordon while empty":       {func(n *corev1.Node) { n.Annotations["mica.gpu/scale-in"] = "empty 2026-01-01T00:00:00Z" }, released, "and no other"},
		"cordoned":                   {func(n *corev1.Node) { n.Spec.Unschedulable = false }, func(n *corev1.Node) { n.Spec.Unschedulable = true }, "may cordon none"},
		"protected":                  {func(n *corev1.Node) { n.Annotations = nil }, func(n *corev1.Node) { n.Annotations = map[string]string{disabled: "true"} }, "and set none"},
		"held for longer":            {nil, func(n *corev1.Node) { n.Annotations["mica.gpu/held-until"] = "2027-01-01T02:00:00Z" }, "and set none"},
		"another annotation removed": {nil, func(n *corev1.Node) { delete(n.Annotations, "other") }, "and no other"},
		"the startup taint removed":  {nil, func(n *corev1.Node) { n.Spec.Taints = n.Spec.Taints[:1] }, "nothing else"},
		"a label":                    {nil, func(n *corev1.Node) { n.Labels["a"] = "c" }, "nothing else"},
		"a finalizer":                {nil, func(n *corev1.Node) { n.Finalizers = []string{"mica.gpu/x"} }, "nothing else"},
	} {
		t.Run(name, func(t *testing.T) {
			before, after := heldNode(), heldNode()
			if test.given != nil {
				test.given(before)
				test.given(after)
			}
			test.change(after)
			job := user.DefaultInfo{Name: "system:serviceaccount:mica:mica-controller-release"}
			expectDecision(t, policy, admission.Review{Kind: "Node", Object: after, Old: before, User: job}, test.want)
		})
	}
}
