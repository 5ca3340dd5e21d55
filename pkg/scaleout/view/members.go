package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// membership maps nodes to groups.
type membership struct {
	// groups are sorted by name.
	groups []*v1alpha1.GPUNodeGroup
	// ofNode has the name of the group by the name of the node.
	ofNode map[string]string
	// nodes are sorted by creation, then by name.
	nodes map[string][]*corev1.Node
	// refused has a sentence for each group that shares nodes with another. A refused group has no nodes.
	refused map[string]string
}

// living are the groups that are not being deleted.
func living(groups []v1alpha1.GPUNodeGroup) []*v1alpha1.GPUNodeGroup {
	out := make([]*v1alpha1.GPUNodeGroup, 0, len(groups))
	for i := range groups {
		if groups[i].DeletionTimestamp == nil {
			out = append(out, &groups[i])
		}
	}
	slices.SortFunc(out, func(a, b *v1alpha1.GPUNodeGroup) int { return strings.Compare(a.Name, b.Name) })
	return out
}

func members(groups []*v1alpha1.GPUNodeGroup, nodes []corev1.Node) membership {
	m := membership{
		groups:  groups,
		ofNode:  map[string]string{},
		nodes:   map[string][]*corev1.Node{},
		refused: map[string]string{},
	}
	m.refuseSameLabels()
	candidates := make([][]*v1alpha1.GPUNodeGroup, len(nodes))
	for i := range nodes {
		candidates[i] = m.groupsOf(&nodes[i])
	}
	for i, of := range candidates {
		for a := range of {
			for _, b := range of[a+1:] {
				m.refuse(of[a], b, fmt.Sprintf("node %s has the labels of both", nodes[i].Name))
			}
		}
	}
	for i, of := range candidates {
		if len(of) != 1 || m.refused[of[0].Name] != "" {
			continue
		}
		m.ofNode[nodes[i].Name] = of[0].Name
		m.nodes[of[0].Name] = append(m.nodes[of[0].Name], &nodes[i])
	}
	for _, of := range m.nodes {
		slices.SortFunc(of, byCreation)
	}
	return m
}

// groupsOf are the groups that select the node and are not refused so far.
func (m *membership) groupsOf(node *corev1.Node) []*v1alpha1.GPUNodeGroup {
	var of []*v1alpha1.GPUNodeGroup
	for _, group := range m.groups {
		if m.refused[group.Name] == "" && hasLabels(node.Labels, group.Spec.Provider.Selector()) {
			of = append(of, group)
		}
	}
	return of
}

// refuseSameLabels refuses groups whose new nodes another group would select, too.
func (m *membership) refuseSameLabels() {
	for i, a := range m.groups {
		for _, b := range m.groups[i+1:] {
			if hasLabels(newNodeLabels(a), b.Spec.Provider.Selector()) || hasLabels(newNodeLabels(b), a.Spec.Provider.Selector()) {
				m.refuse(a, b, fmt.Sprintf("one selects nodes by %s, the other by %s",
					labels.Set(a.Spec.Provider.Selector()), labels.Set(b.Spec.Provider.Selector())))
			}
		}
	}
}

// refuse refuses both groups, because it is unclear which one is meant. If only one of them was discovered, it refuses
// that one.
func (m *membership) refuse(a, b *v1alpha1.GPUNodeGroup, why string) {
	foundA, foundB := a.Labels[v1alpha1.LabelDiscovered] != "", b.Labels[v1alpha1.LabelDiscovered] != ""
	if foundA || !foundB {
		m.refuseOne(a, b, why)
	}
	if foundB || !foundA {
		m.refuseOne(b, a, why)
	}
}

func (m *membership) refuseOne(group, other *v1alpha1.GPUNodeGroup, why string) {
	if m.refused[group.Name] == "" {
		m.refused[group.Name] = fmt.Sprintf("GPUNodeGroup %s has the same nodes as GPUNodeGroup %s (%s): delete one of them, or give each a provider that selects only its own nodes",
			group.Name, other.Name, why)
	}
}

// newNodeLabels are the labels that the spec gives every new node.
func newNodeLabels(group *v1alpha1.GPUNodeGroup) map[string]string {
	return labels.Merge(group.Spec.Template.Labels, group.Spec.Provider.Selector())
}

// hasLabels is false if no labels are wanted: a selector without labels is a mistake, and does not select every node.
func hasLabels(have, wanted map[string]string) bool {
	return len(wanted) > 0 && labels.ValidatedSetSelector(wanted).Matches(labels.Set(have))
}

func byCreation[T metav1.Object](a, b T) int {
	return cmp.Or(a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time), strings.Compare(a.GetName(), b.GetName()))
}
