package template

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

var learnedAt = time.Date(2026, 11, 22, 1, 2, 3, 4, time.FixedZone("KST", 9*60*60))

// liveNode is a node of EKS that has just been started.
func liveNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: "ip-10-0-0-1.ec2.internal", UID: "uid", ResourceVersion: "7",
			Annotations: map[string]string{"node.alpha.kubernetes.io/ttl": "0"},
			Labels: map[string]string{
				"kubernetes.io/hostname": "ip-10-0-0-1", "kubernetes.io/os": "linux", "team": "a",
				"alpha.eksctl.io/instance-id": "i-0abc", "eks.amazonaws.com/nodegroup": "gpus",
				"topology.k8s.aws/network-node-layer-3": "nn-1", "topology.kubernetes.io/zone": "us-east-1a",
				"empty": "",
			},
		},
		Spec: corev1.NodeSpec{
			ProviderID:    "aws:///us-east-1a/i-0abc",
			Unschedulable: true,
			Taints: []corev1.Taint{
				{Key: v1alpha1.TaintStartup, Effect: corev1.TaintEffectNoSchedule},
				{Key: "node.kubernetes.io/not-ready", Effect: corev1.TaintEffectNoExecute},
				{Key: "ToBeDeletedByClusterAutoscaler", Value: "1", Effect: corev1.TaintEffectNoSchedule},
				{Key: "DeletionCandidateOfClusterAutoscaler", Effect: corev1.TaintEffectPreferNoSchedule},
				{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule},
			},
		},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse("47"), "memory": resource.MustParse("180Gi"), "pods": resource.MustParse("737")},
			Capacity:    corev1.ResourceList{"cpu": resource.MustParse("48"), "memory": resource.MustParse("185Gi"), "pods": resource.MustParse("737")},
		},
	}
}

// liveSlices are what a machine of the simulator publishes as the node.
func liveSlices(t testing.TB, machine string, node *corev1.Node) []*resourceapi.ResourceSlice {
	t.Helper()
	all := published(t, machine, nil)
	for _, s := range all {
		s.Spec.NodeName, s.Spec.Pool.Name, s.Spec.Pool.Generation = ptr.To(node.Name), node.Name, 4
	}
	return all
}

// otherDriver is a slice of another driver for the node.
func otherDriver(node *corev1.Node) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "nics-" + node.Name},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: "dra.net", NodeName: ptr.To(node.Name), Pool: resourceapi.ResourcePool{Name: "nics", Generation: 2, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{{Name: "eth0"}},
		},
	}
}

func TestLearn(t *testing.T) {
	node := liveNode()
	all := liveSlices(t, "g5.12xlarge", node)
	withdrawn := resourceapi.DeviceTaint{Key: "mica.gpu/withdrawn", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	all[0].Spec.Devices[1].Taints = []resourceapi.DeviceTaint{withdrawn}
	all[0].Spec.Devices[2].Taints = []resourceapi.DeviceTaint{{Key: "gpu.nvidia.com/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoExecute}}
	outdated := all[0].DeepCopy()
	outdated.Name, outdated.Spec.Pool.Generation = "outdated", 3
	elsewhere := all[0].DeepCopy()
	elsewhere.Name, elsewhere.Spec.NodeName = "elsewhere", ptr.To("another")
	everywhere := all[0].DeepCopy()
	everywhere.Name, everywhere.Spec.NodeName, everywhere.Spec.AllNodes = "everywhere", nil, ptr.To(true)
	given := append([]*resourceapi.ResourceSlice{outdated, elsewhere, everywhere, otherDriver(node)}, all...)
	before := []*resourceapi.ResourceSlice{}
	for _, s := range given {
		before = append(before, s.DeepCopy())
	}

	learned := Learn(node, given, []*v1alpha1.GPUPolicy{policyFor("ours", map[string]string{"team": "a"})}, StartupTaints{}, learnedAt)

	if diff := cmp.Diff(before, given); diff != "" {
		t.Errorf("the live slices were changed:\n%s", diff)
	}
	name := "ip-10-0-0-1.ec2.internal-new"
	wantLabels := map[string]string{
		"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "team": "a", "eks.amazonaws.com/nodegroup": "gpus",
		"topology.kubernetes.io/zone": "us-east-1a", "empty": "",
	}
	if diff := cmp.Diff(wantLabels, learned.Node.Labels); diff != "" || learned.Node.Name != name {
		t.Errorf("node %s has labels (-want +got):\n%s", learned.Node.Name, diff)
	}
	if len(learned.Node.Spec.Taints) != 1 || learned.Node.Spec.Taints[0].Key != "gpu" || learned.Node.Spec.Unschedulable || len(learned.Node.Annotations) > 0 {
		t.Errorf("it kept %v, unschedulable: %t, %v", learned.Node.Spec.Taints, learned.Node.Spec.Unschedulable, learned.Node.Annotations)
	}
	if diff := cmp.Diff(node.Status.Allocatable, learned.Node.Status.Allocatable); diff != "" {
		t.Errorf("allocatable (-want +got):\n%s", diff)
	}
	if learned.Policy != "ours/3" || learned.LearnedFrom != node.Name || !learned.LearnedAt.Equal(learnedAt.Truncate(time.Second)) || learned.Source != v1alpha1.SourceLearned {
		t.Errorf("got %s by %s at %v under %q", learned.Source, learned.LearnedFrom, learned.LearnedAt, learned.Policy)
	}
	if len(learned.Slices) != 1+len(all) {
		t.Fatalf("it has %d slices, want %d", len(learned.Slices), 1+len(all))
	}
	ours := learned.Slices[len(learned.Slices)-len(all)]
	if len(ours.Spec.Devices) != 3 {
		t.Errorf("it has %d devices, want those that are not withdrawn", len(ours.Spec.Devices))
	}
	for _, s := range learned.Slices {
		if *s.Spec.NodeName != name || s.Spec.Pool.Generation != 1 {
			t.Errorf("slice %s is of node %s, generation %d", s.Name, *s.Spec.NodeName, s.Spec.Pool.Generation)
		}
		for _, d := range s.Spec.Devices {
			if len(d.Taints) > 0 {
				t.Errorf("device %s is tainted: %v", d.Name, d.Taints)
			}
		}
	}
	if ours.Spec.Pool.Name != name || learned.Slices[0].Spec.Pool.Name != "nics" {
		t.Errorf("pools are named %s and %s", ours.Spec.Pool.Name, learned.Slices[0].Spec.Pool.Name)
	}
	if missing := Missing(driver, learned, node, given); len(missing) > 0 {
		t.Errorf("the node lacks %q of what was learned from it", missing)
	}
	if difference := Difference(driver, learned, node, given); difference != "" {
		t.Errorf("the node differs from what was learned from it: %s", difference)
	}
}

// A node without labels, slices or policies is no reason to fail.
func TestLearnFromAlmostNothing(t *testing.T) {
	learned := Learn(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bare"}}, nil, nil, StartupTaints{}, learnedAt)
	if learned.Policy != "" || len(learned.Slices) != 0 || learned.Node.Labels[corev1.LabelHostname] != "bare-new" {
		t.Errorf("got %+v", learned)
	}
	if data, err := Encode(learned); err != nil || len(data) == 0 {
		t.Errorf("it cannot be kept: %v", err)
	}
}
