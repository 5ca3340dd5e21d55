package helm_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/admission"
)

func pluginOn(node string) user.DefaultInfo {
	return user.DefaultInfo{
		Name:  "system:serviceaccount:mica:mica-plugin",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
}

func TestGPUNodePolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "gpunodes-")
	reported := func(name string, owners ...metav1.OwnerReference) *v1alpha1.GPUNode {
		return &v1alpha1.GPUNode{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	}
	node := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "a", UID: "u"}
	others, pod := node, node
	others.Name, pod.Kind = "b", "Pod"
	for name, test := range map[string]struct {
		object *v1alpha1.GPUNode
		node   string
		want   string // part of the message; "" is accepted
	}{
		"its own":                   {reported("a", node), "a", ""},
		"its own, without an owner": {reported("a"), "a", ""},
		"another's":                 {reported("b"), "a", "the Mica plugin on the node a may write only the GPUNode of that name, but this one is b"},
		"without a name":            {reported(""), "a", "may write only the GPUNode of that name"},
		"another node's":            {reported("a", others), "a", "may belong to the Node of its name only"},
		"a pod's":                   {reported("a", node, pod), "a", "may belong to the Node of its name only"},
		"a token of no node":        {reported("a", node), "", "not bound to a pod on a node"},
	} {
		t.Run(name, func(t *testing.T) {
			for _, old := range []*v1alpha1.GPUNode{nil, reported(test.object.Name)} {
				asked := admission.Review{Kind: "GPUNode", Object: test.object, User: pluginOn(test.node)}
				if old != nil {
					asked.Old = old
				}
				expectDecision(t, policy, asked, test.want)
			}
		})
	}
	if matched, _ := policy.Review(t, admission.Review{Kind: "GPUNode", Object: reported("b"), User: user.DefaultInfo{Name: "admin"}}); matched {
		t.Error("others than the plugin are looked at")
	}
}
