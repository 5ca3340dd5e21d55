package pair

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// attempt is a placeholder with its node.
type attempt struct {
	pod *corev1.Pod
	// node is nil until it has come.
	node *view.NodeState
	// lost reports whether the placeholder is bound to a node that is gone.
	lost bool
}

// ended reports whether the placeholder will never be bound again.
func (a attempt) ended() bool {
	return a.pod.Status.Phase == corev1.PodFailed || a.pod.Status.Phase == corev1.PodSucceeded
}

func (a attempt) kinds() []string {
	if all := a.pod.Annotations[v1alpha1.AnnotationKinds]; all != "" {
		return strings.Split(all, ",")
	}
	return []string{a.pod.Labels[v1alpha1.LabelKind]}
}

// attempts are the group's placeholders, the oldest first, each with its node: the one that it is bound to, or else the
// oldest node that came after it and that no other placeholder has. Nodes of a group are alike, so the choice is arbitrary.
func attempts(placeholders []*corev1.Pod, group *view.Group, now time.Time) []attempt {
	var found []attempt
	for _, pod := range placeholders {
		if pod.Labels[v1alpha1.LabelNodeGroup] == group.Object.Name && pod.DeletionTimestamp == nil {
			found = append(found, attempt{pod: pod})
		}
	}
	slices.SortFunc(found, func(a, b attempt) int {
		return cmp.Or(a.pod.CreationTimestamp.Compare(b.pod.CreationTimestamp.Time), cmp.Compare(a.pod.Name, b.pod.Name))
	})
	taken := takeOwn(found, group, now)
	for i := range found {
		if found[i].pod.Spec.NodeName == "" && !found[i].ended() {
			found[i].node = firstAfter(found[i].pod, group, taken)
		}
	}
	return found
}

// takeOwn matches bound placeholders with their nodes.
func takeOwn(found []attempt, group *view.Group, now time.Time) map[string]bool {
	nodes := make(map[string]*view.NodeState, len(group.Nodes))
	for i := range group.Nodes {
		nodes[group.Nodes[i].Object.Name] = &group.Nodes[i]
	}
	taken := map[string]bool{}
	for i := range found {
		if name := found[i].pod.Spec.NodeName; name != "" {
			found[i].node = nodes[name]
			found[i].lost = nodes[name] == nil && age(now, boundSince(found[i].pod)) > nodeSeen
			taken[name] = true
		}
	}
	return taken
}

// nodeSeen is how long after the binding of a placeholder its node may be unknown: pods and nodes have separate watches.
const nodeSeen = time.Minute

// boundSince is when a pod was bound, or else created.
func boundSince(pod *corev1.Pod) time.Time {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return pod.CreationTimestamp.Time
}

// firstAfter takes the first free node that came after the placeholder. The group's nodes are in order of creation.
func firstAfter(pod *corev1.Pod, group *view.Group, taken map[string]bool) *view.NodeState {
	for i := range group.Nodes {
		node := &group.Nodes[i]
		if !taken[node.Object.Name] && !node.Object.CreationTimestamp.Before(&pod.CreationTimestamp) {
			taken[node.Object.Name] = true
			return node
		}
	}
	return nil
}

// templateAge is how long a node is Ready before Cluster Autoscaler uses it as the template of its group.
const templateAge = time.Minute

// liveTemplate is when Cluster Autoscaler gets a live template of the group, if the group has a complete node.
func liveTemplate(group *view.Group) (time.Time, bool) {
	var first time.Time
	found := false
	for i := range group.Nodes {
		if node := &group.Nodes[i]; node.Complete() {
			if since := node.CompleteSince(); !found || since.Before(first) {
				first, found = since, true
			}
		}
	}
	return first.Add(templateAge), found
}
