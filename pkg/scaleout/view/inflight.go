package view

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// inFlight are requested nodes that do not exist yet.
func inFlight(group *v1alpha1.GPUNodeGroup, nodes []*corev1.Node, placeholders []*corev1.Pod) []v1alpha1.InFlight {
	own := placeholdersOf(group.Name, placeholders)
	known, hosts := map[string]bool{}, map[string]bool{}
	for _, node := range nodes {
		known[node.Name] = true
	}
	var waiting []v1alpha1.InFlight
	for _, pod := range own {
		// A cache may have a placeholder on its node before it has the node.
		if known[pod.Spec.NodeName] {
			hosts[pod.Spec.NodeName] = true
			continue
		}
		waiting = append(waiting, v1alpha1.InFlight{
			ID:    pod.Name,
			Kind:  pod.Labels[v1alpha1.LabelKind],
			Nodes: 1,
			Since: pod.CreationTimestamp,
		})
	}
	// A node on which a placeholder has landed is that placeholder's, not another's.
	free := slices.DeleteFunc(slices.Clone(nodes), func(node *corev1.Node) bool { return hosts[node.Name] })
	entries, free := unmet(waiting, free, createdAfter)
	if group.Spec.Pairing == v1alpha1.PairingDirect {
		asked, _ := unmet(group.Status.InFlight, free, createdSince)
		entries = append(entries, asked...)
	}
	return entries
}

// placeholdersOf are those of a group that have neither ended nor are being deleted, the oldest first.
func placeholdersOf(group string, placeholders []*corev1.Pod) []*corev1.Pod {
	var own []*corev1.Pod
	for _, pod := range placeholders {
		if pod.Labels[v1alpha1.LabelNodeGroup] == group && pod.DeletionTimestamp == nil && !fit.Ended(pod) {
			own = append(own, pod)
		}
	}
	slices.SortFunc(own, byCreation)
	return own
}

// unmet are the entries without a node, and the nodes without an entry. A node meets an entry that is older than
// itself. There is no better sign, because a placeholder cannot land before the startup taint is removed.
func unmet(entries []v1alpha1.InFlight, nodes []*corev1.Node, meets func(*corev1.Node, v1alpha1.InFlight) bool) (left []v1alpha1.InFlight, free []*corev1.Node) {
	free = slices.Clone(nodes)
	for _, entry := range entries {
		for entry.Nodes > 0 {
			i := slices.IndexFunc(free, func(node *corev1.Node) bool { return meets(node, entry) })
			if i < 0 {
				left = append(left, entry)
				break
			}
			free = slices.Delete(free, i, i+1)
			entry.Nodes--
		}
	}
	return left, free
}

// createdAfter is strict: creation times are whole seconds, and an existing node must not count as the requested one.
func createdAfter(node *corev1.Node, entry v1alpha1.InFlight) bool {
	return node.CreationTimestamp.After(entry.Since.Time)
}

// createdSince is not strict: a call of EKS counts existing nodes, so that an entry that is wrongly met does no harm.
func createdSince(node *corev1.Node, entry v1alpha1.InFlight) bool {
	return !node.CreationTimestamp.Before(&entry.Since)
}

// askedFor are the kinds for which nodes were requested, as far as known.
func askedFor(entries []v1alpha1.InFlight) []string {
	var kinds []string
	for _, entry := range entries {
		if entry.Kind == "" {
			continue
		}
		for range entry.Nodes {
			kinds = append(kinds, entry.Kind)
		}
	}
	return kinds
}

func upcoming(entries []v1alpha1.InFlight) int {
	nodes := 0
	for _, entry := range entries {
		nodes += int(entry.Nodes)
	}
	return nodes
}
