package template

import (
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/policy"
	"github.com/mica-gpu/mica/pkg/slice"
)

// Learn makes a template of a complete node. It leaves out what other nodes will not have: names, taints of the node's
// start and end, withdrawn devices, and taints of devices, which are about their health.
func Learn(node *corev1.Node, all []*resourceapi.ResourceSlice, policies []*v1alpha1.GPUPolicy, startup StartupTaints, now time.Time) *Template {
	name := node.Name + "-new"
	t := &Template{
		Node: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: commonLabels(node, name)},
			Spec:       corev1.NodeSpec{Taints: startup.lasting(node.Spec.Taints)},
			Status:     corev1.NodeStatus{Allocatable: node.Status.Allocatable.DeepCopy(), Capacity: node.Status.Capacity.DeepCopy()},
		},
		Source:      v1alpha1.SourceLearned,
		LearnedFrom: node.Name,
		LearnedAt:   now.UTC().Truncate(time.Second),
		Policy:      identity(policy.Select(policies, node.Labels)),
		invented:    slices.Clone(ofEveryNode),
	}
	for _, p := range devices.OfNode(node.Name, all) {
		for _, s := range p.Slices {
			t.Slices = append(t.Slices, likeNew(s, node.Name, name))
		}
	}
	return t
}

// likeNew is a slice as another node would publish it. It shares memory with the node's slice.
func likeNew(s *resourceapi.ResourceSlice, from, to string) *resourceapi.ResourceSlice {
	s = &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: s.Name + "-new"}, Spec: s.Spec}
	s.Spec.NodeName = &to
	s.Spec.Pool.Generation = 1
	s.Spec.Pool.Name = strings.ReplaceAll(s.Spec.Pool.Name, from, to)
	if slices.ContainsFunc(s.Spec.Devices, func(d resourceapi.Device) bool { return len(d.Taints) > 0 }) {
		s.Spec.Devices = slices.DeleteFunc(slices.Clone(s.Spec.Devices), isWithdrawn)
		for i := range s.Spec.Devices {
			s.Spec.Devices[i].Taints = nil
		}
	}
	return s
}

// isWithdrawn reports whether no new claim can get the device, because a policy no longer offers it.
func isWithdrawn(d resourceapi.Device) bool {
	return slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == slice.TaintWithdrawn })
}

// commonLabels are those that all nodes of the group have.
func commonLabels(node *corev1.Node, name string) map[string]string {
	own := []string{node.Name, node.Labels[corev1.LabelHostname]}
	if id := path.Base(node.Spec.ProviderID); strings.HasPrefix(id, "i-") {
		own = append(own, id)
	}
	labels := maps.Clone(node.Labels)
	maps.DeleteFunc(labels, func(key, value string) bool {
		return value != "" && slices.Contains(own, value) || slices.ContainsFunc(labelsOfOneNode, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
	})
	if labels == nil {
		labels = map[string]string{}
	}
	labels[corev1.LabelHostname] = name
	return labels
}

// labelsOfOneNode are prefixes of labels with a value per node: its place in the network, and the time of NVIDIA's
// feature discovery.
var labelsOfOneNode = []string{"topology.k8s.aws/network-node-layer-", "nvidia.com/gfd.timestamp"}
