package scan

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// StartupTaintPrefix is the prefix of startup taints (utils/taints/taints.go, StartupTaintPrefix). A node with one is
// starting, and is no template (FilterOutNodesWithStartupTaints).
const StartupTaintPrefix = "startup-taint.cluster-autoscaler.kubernetes.io/"

// Template is a group's expected node.
type Template struct {
	Node   *corev1.Node
	Slices []*resourceapi.ResourceSlice
}

// template is like a present or former node of the group (processors/nodeinfosprovider/mixed_nodeinfos_processor.go,
// Process), or else the cloud's prediction, which has no slices (aws/aws_cloud_provider.go, TemplateNodeInfo).
func (s *scanner) template(group Group) *Template {
	if learned := s.memory.Templates[group.Name]; learned != nil {
		return learned
	}
	node := &corev1.Node{}
	node.Labels = maps.Clone(group.Labels)
	for _, taint := range group.Taints {
		// The AWS provider loses taints without a value (aws/aws_wrapper.go, getManagedNodegroupInfo).
		if taint.Value != "" {
			node.Spec.Taints = append(node.Spec.Taints, taint)
		}
	}
	node.Spec.Taints = withoutStartup(node.Spec.Taints)
	node.Status.Allocatable = group.Allocatable
	return &Template{Node: node}
}

// learn keeps a node of each group that has been ready for a while, with its present slices, even if it has none: this
// poisons the real one's cache, too (processors/nodeinfosprovider/mixed_nodeinfos_processor.go, isNodeGoodTemplateCandidate;
// for nodes with fewer pools, processors/customresources/dra_processor.go, FilterOutNodesWithUnreadyResources).
func (s *scanner) learn() {
	for _, group := range s.Groups {
		for _, node := range s.members[group.Name] {
			if node.Spec.Unschedulable || startup(node) || !s.readyFor(node, s.options.TemplateAge) ||
				!complete(s.memory.Templates[group.Name], s.slicesOf(node.Name)) {
				continue
			}
			s.memory.Templates[group.Name] = &Template{Node: sanitized(node), Slices: s.slicesOf(node.Name)}
			break
		}
	}
}

// sanitized is a node without its own taints (utils/taints/taints.go, SanitizeTaints).
func sanitized(node *corev1.Node) *corev1.Node {
	template := &corev1.Node{}
	template.Labels = maps.Clone(node.Labels)
	template.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/")
	})
	template.Status.Allocatable = node.Status.Allocatable
	return template
}

// started reports whether a node is ready, without startup taint, and with as many complete pools per driver as its
// template.
func (s *scanner) started(node *corev1.Node, template *Template) bool {
	return s.readyFor(node, 0) && !startup(node) && complete(template, s.slicesOf(node.Name))
}

func (s *scanner) readyFor(node *corev1.Node, age time.Duration) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
			return !s.Now.Before(condition.LastTransitionTime.Add(age))
		}
	}
	return false
}

func (s *scanner) slicesOf(node string) []*resourceapi.ResourceSlice {
	return slicesOf(s.Slices, node)
}

func slicesOf(all []*resourceapi.ResourceSlice, node string) []*resourceapi.ResourceSlice {
	var own []*resourceapi.ResourceSlice
	for _, slice := range all {
		if slice.Spec.NodeName != nil && *slice.Spec.NodeName == node {
			own = append(own, slice)
		}
	}
	return own
}

func startup(node *corev1.Node) bool {
	return len(withoutStartup(node.Spec.Taints)) < len(node.Spec.Taints)
}

func withoutStartup(taints []corev1.Taint) []corev1.Taint {
	return slices.DeleteFunc(slices.Clone(taints), func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, StartupTaintPrefix) })
}

// complete reports whether there are as many complete pools per driver as in the template
// (processors/customresources/dra_processor.go, areResourcePoolsReady).
func complete(template *Template, published []*resourceapi.ResourceSlice) bool {
	if template == nil {
		return true
	}
	have := completePools(published)
	for driver, count := range completePools(template.Slices) {
		if have[driver] < count {
			return false
		}
	}
	return true
}

// completePools counts complete pools by driver.
func completePools(all []*resourceapi.ResourceSlice) map[string]int {
	type pool struct{ driver, name string }
	newest, seen, want := map[pool]int64{}, map[pool]int64{}, map[pool]int64{}
	for _, slice := range all {
		p := pool{slice.Spec.Driver, slice.Spec.Pool.Name}
		switch generation := slice.Spec.Pool.Generation; {
		case generation > newest[p]:
			newest[p], seen[p], want[p] = generation, 1, slice.Spec.Pool.ResourceSliceCount
		case generation == newest[p]:
			seen[p]++
			want[p] = slice.Spec.Pool.ResourceSliceCount
		}
	}
	counts := map[string]int{}
	for p := range seen {
		if seen[p] == want[p] {
			counts[p.driver]++
		}
	}
	return counts
}

// room is a new node of that name (simulator/node_info_utils.go, SanitizedNodeInfo).
func (t *Template) room(w *world, name string) *room {
	node := t.Node.DeepCopy()
	node.Name = name
	node.Labels[corev1.LabelHostname] = name
	var own []*resourceapi.ResourceSlice
	for _, slice := range t.Slices {
		slice = slice.DeepCopy()
		slice.Spec.NodeName = &name
		slice.Spec.Pool.Name += "-" + name
		own = append(own, slice)
	}
	return w.room(node, own, nil)
}
