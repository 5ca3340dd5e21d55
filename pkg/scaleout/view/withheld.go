package view

import (
	"fmt"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// withheldNodes has the plugins' reasons of nodes that offer none of their GPUs, by name. If a node publishes devices,
// they are newer than the reason.
func (r *reading) withheldNodes() map[string]string {
	withheld := map[string]string{}
	for i := range r.gpuNodes.Items {
		node := &r.gpuNodes.Items[i]
		publishes := slices.ContainsFunc(r.slices[node.Name], func(s *resourceapi.ResourceSlice) bool { return s.Spec.Driver == r.Driver })
		if node.Withheld != "" && !publishes {
			withheld[node.Name] = "offers none of its GPUs: " + node.Withheld
		}
	}
	return withheld
}

// withheld says why a new node of a group would offer no GPU: none of its nodes is complete, and one of them offers
// none.
func withheld(nodes []NodeState) string {
	if slices.ContainsFunc(nodes, NodeState.Complete) {
		return ""
	}
	for _, state := range nodes {
		if state.Withheld != "" {
			return fmt.Sprintf("a new node would be like %s, which %s", state.Object.Name, state.Withheld)
		}
	}
	return ""
}
