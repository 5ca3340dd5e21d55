package view

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func testGroup(name string, selector map[string]string, change ...func(*v1alpha1.GPUNodeGroup)) *v1alpha1.GPUNodeGroup {
	group := &v1alpha1.GPUNodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider: v1alpha1.NodeGroupProvider{NodeSelector: selector},
			Pairing:  v1alpha1.PairingPlaceholder,
		},
	}
	for _, c := range change {
		c(group)
	}
	return group
}

func testNode(name string, age time.Duration, labels map[string]string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: name, Labels: labels, CreationTimestamp: metav1.NewTime(t0.Add(-age)),
	}}
}

func pool(name string) map[string]string { return map[string]string{"pool": name} }

func TestNodesAreOfTheGroupWhoseLabelsTheyHave(t *testing.T) {
	m := members([]*v1alpha1.GPUNodeGroup{testGroup("a", pool("a")), testGroup("b", pool("b")), testGroup("none", nil)}, []corev1.Node{
		*testNode("young", time.Minute, pool("a")),
		*testNode("old", time.Hour, pool("a")),
		*testNode("other", time.Hour, pool("c")),
		*testNode("bare", time.Hour, nil),
	})
	if len(m.refused) != 0 {
		t.Errorf("groups are refused: %v", m.refused)
	}
	if got := names(m.nodes["a"]); got != "old young" {
		t.Errorf("group a has the nodes %q, want old and young, by creation", got)
	}
	if len(m.nodes["b"]) != 0 || len(m.nodes["none"]) != 0 {
		t.Errorf("groups without nodes have some: %v", m.nodes)
	}
	if m.ofNode["other"] != "" || m.ofNode["bare"] != "" || m.ofNode["old"] != "a" {
		t.Errorf("the nodes are of %v", m.ofNode)
	}
}

func names[T metav1.Object](objects []T) string {
	var all []string
	for _, o := range objects {
		all = append(all, o.GetName())
	}
	return strings.Join(all, " ")
}

func TestGroupsWithTheSameNodesAreRefused(t *testing.T) {
	discovered := func(g *v1alpha1.GPUNodeGroup) { g.Labels = map[string]string{v1alpha1.LabelDiscovered: "nodes"} }
	eks := func(g *v1alpha1.GPUNodeGroup) {
		g.Spec.Provider = v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Nodegroup: "p5"}}
	}
	hasLabel := func(g *v1alpha1.GPUNodeGroup) { g.Spec.Template.Labels = pool("b") }
	both := map[string]string{"pool": "a", "zone": "z"}
	for name, test := range map[string]struct {
		groups  []*v1alpha1.GPUNodeGroup
		nodes   []corev1.Node
		refused string
	}{
		"other labels":        {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a")), testGroup("b", pool("b"))}},
		"the same labels":     {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a")), testGroup("b", pool("a"))}, refused: "a b"},
		"one of them also":    {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a")), testGroup("b", both)}, refused: "a b"},
		"EKS by its label":    {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", nil, eks), testGroup("b", map[string]string{v1alpha1.LabelEKSNodegroup: "p5"})}, refused: "a b"},
		"by the template":     {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", map[string]string{"x": "y"}, hasLabel), testGroup("b", pool("b"))}, refused: "a b"},
		"a third is left":     {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a")), testGroup("b", pool("a")), testGroup("c", pool("c"))}, refused: "a b"},
		"the found gives way": {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a"), discovered), testGroup("b", pool("a"))}, refused: "a"},
		"two found":           {groups: []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a"), discovered), testGroup("b", pool("a"), discovered)}, refused: "a b"},
		"a node of both": {
			groups:  []*v1alpha1.GPUNodeGroup{testGroup("a", pool("a")), testGroup("b", map[string]string{"zone": "z"})},
			nodes:   []corev1.Node{*testNode("n", time.Hour, both), *testNode("m", time.Hour, pool("a"))},
			refused: "a b",
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := members(test.groups, test.nodes)
			var refused []string
			for _, group := range test.groups {
				text := m.refused[group.Name]
				if text == "" {
					continue
				}
				refused = append(refused, group.Name)
				if !strings.Contains(text, "GPUNodeGroup "+group.Name+" has the same nodes as GPUNodeGroup") || !strings.Contains(text, "delete one of them") {
					t.Errorf("the sentence says neither what is wrong nor what to do: %s", text)
				}
				if len(m.nodes[group.Name]) > 0 {
					t.Errorf("the refused group %s has nodes", group.Name)
				}
			}
			if got := strings.Join(refused, " "); got != test.refused {
				t.Errorf("refused are %q, want %q", got, test.refused)
			}
		})
	}
}
