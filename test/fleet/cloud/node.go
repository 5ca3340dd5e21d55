package cloud

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
)

// Labels of every node of a managed node group of EKS.
const (
	LabelNodegroup    = "eks.amazonaws.com/nodegroup"
	LabelCapacityType = "eks.amazonaws.com/capacityType"
)

// Annotations of the nodes that the cloud boots.
const (
	// AnnotationGroup has the node group's name.
	AnnotationGroup = "fleet.mica.gpu/group"
	// AnnotationMachine names the simulated machine.
	AnnotationMachine = "fleet.mica.gpu/machine"
	// AnnotationSliceDelay is the time from the node's creation to the start of its plugin, or Never.
	AnnotationSliceDelay = "fleet.mica.gpu/slice-delay"
	Never                = "never"
	// AnnotationFake marks kwok's nodes.
	AnnotationFake = "kwok.x-k8s.io/node"
)

// Region and Zone are where all machines are, and Image is what they boot.
const (
	Region = "sim-1"
	Zone   = "sim-1a"
	Image  = "ami-00000000000000000"
)

// labels are those that kubelet, the cloud controller manager, EKS and nodeadm (nvidia.com/gpu.present, amazon-eks-ami
// #2607) set on a node of a managed node group, without the host name.
func (g Group) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelOSStable:                "linux",
		"beta.kubernetes.io/os":             "linux",
		corev1.LabelArchStable:              "amd64",
		"beta.kubernetes.io/arch":           "amd64",
		corev1.LabelInstanceTypeStable:      g.InstanceType,
		corev1.LabelInstanceType:            g.InstanceType,
		corev1.LabelTopologyRegion:          Region,
		corev1.LabelFailureDomainBetaRegion: Region,
		corev1.LabelTopologyZone:            Zone,
		corev1.LabelFailureDomainBetaZone:   Zone,
		"topology.k8s.aws/zone-id":          "sim1-az1",
		LabelNodegroup:                      g.Name,
		LabelCapacityType:                   g.Capacity(),
		"eks.amazonaws.com/nodegroup-image": Image,
		"nvidia.com/gpu.present":            "true",
	}
	maps.Copy(labels, g.Labels)
	return labels
}

// newInstance is an instance ID in EC2's format.
func newInstance() string { return fmt.Sprintf("i-%017x", rand.Uint64()) }

// ProviderID is an instance's provider ID, as AWS's cloud controller manager sets it.
func ProviderID(instance string) string { return "aws:///" + Zone + "/" + instance }

// InstanceOf is the instance of a node.
func InstanceOf(node *corev1.Node) string { return path.Base(node.Spec.ProviderID) }

// newNode is a node that has just registered, without conditions.
func (g Group) newNode(instance string) *corev1.Node {
	name := fmt.Sprintf("%s-%s", g.Name, utilrand.String(6))
	labels := g.labels()
	labels[corev1.LabelHostname] = name
	delay := g.SliceDelay.Duration.String()
	if g.NoSlices {
		delay = Never
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:   name,
			Labels: labels,
			Annotations: map[string]string{
				AnnotationGroup: g.Name, AnnotationMachine: cmp.Or(g.Machine, g.InstanceType), AnnotationSliceDelay: delay, AnnotationFake: "fake",
			},
		},
		Spec: corev1.NodeSpec{ProviderID: ProviderID(instance), Taints: slices.Clone(g.Taints)},
		Status: corev1.NodeStatus{
			Capacity:    maps.Clone(g.Allocatable),
			Allocatable: maps.Clone(g.Allocatable),
			NodeInfo:    corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64"},
		},
	}
}

// SliceDelay is how long after its creation a node's plugin starts; false: never.
func SliceDelay(node *corev1.Node) (time.Duration, bool, error) {
	text := node.Annotations[AnnotationSliceDelay]
	switch text {
	case Never:
		return 0, false, nil
	case "":
		return 0, true, nil
	}
	delay, err := time.ParseDuration(text)
	if err != nil {
		return 0, false, fmt.Errorf("node %s, annotation %s: %w: give a duration such as 5s, or %s", node.Name, AnnotationSliceDelay, err, Never)
	}
	return delay, true, nil
}
