package eks

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/test/ekssim"
)

func isGPU(instanceType string) bool { return strings.HasPrefix(instanceType, "p5.") }

func TestGroupsWithGPUsAreDiscovered(t *testing.T) {
	b := newBench(t)
	b.Add(ekssim.Group{
		Name: "Training_A", Min: 1, Max: 7, Desired: 2, InstanceTypes: []string{"p5.4xlarge"}, CapacityType: "SPOT",
		Labels: map[string]string{"team": "a"},
		Taints: []ekssim.Taint{
			{Key: "team", Value: "a", Effect: "NO_SCHEDULE"},
			{Key: v1alpha1.TaintStartup, Value: "true", Effect: "NO_SCHEDULE"},
			{Key: "node.cilium.io/agent-not-ready", Value: "true", Effect: "NO_EXECUTE"},
			{Key: "drain", Value: "b", Effect: "NO_EXECUTE"},
		},
	})
	b.Add(ekssim.Group{Name: "mixed", Max: 1, InstanceTypes: []string{"p5.4xlarge", "p5.48xlarge"}})
	b.Add(ekssim.Group{Name: "from-launch-template", Max: 1})
	// More than a page of others.
	for i := range 120 {
		b.Add(ekssim.Group{Name: fmt.Sprintf("cpu-%03d", i), Max: 1, InstanceTypes: []string{"m7i.large"}})
	}
	groups, err := b.client.Discover(context.Background(), "one", isGPU)
	if err != nil {
		t.Fatal(err)
	}
	most := []int32{7, 5}
	want := []v1alpha1.GPUNodeGroup{{
		ObjectMeta: metav1.ObjectMeta{Name: "training-a-" + suffix(t, groups, "Training_A"), Labels: map[string]string{v1alpha1.LabelDiscovered: "eks"}},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:     v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "Training_A"}},
			InstanceType: "p5.4xlarge",
			Template: v1alpha1.NodeTemplate{Labels: map[string]string{"team": "a"}, Taints: []corev1.Taint{
				{Key: "drain", Value: "b", Effect: corev1.TaintEffectNoExecute},
				{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule},
			}},
			Min: 1, Max: &most[0], Pairing: v1alpha1.PairingPlaceholder, CapacityType: "SPOT",
		},
	}, {
		ObjectMeta: metav1.ObjectMeta{Name: "gpus", Labels: map[string]string{v1alpha1.LabelDiscovered: "eks"}},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:     v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "gpus"}},
			InstanceType: "p5.48xlarge", Max: &most[1], Pairing: v1alpha1.PairingPlaceholder,
		},
	}}
	if diff := cmp.Diff(want, groups); diff != "" {
		t.Errorf("discovered (-want +got):\n%s", diff)
	}
	if n := b.count("ListNodegroups"); n != 2 {
		t.Errorf("%d pages, want 2", n)
	}
}

// suffix is what keeps the object's name from being another node group's.
func suffix(t *testing.T, groups []v1alpha1.GPUNodeGroup, nodegroup string) string {
	t.Helper()
	for _, g := range groups {
		if g.Spec.Provider.EKS.Nodegroup == nodegroup {
			return g.Name[strings.LastIndex(g.Name, "-")+1:]
		}
	}
	t.Fatalf("%s is not discovered", nodegroup)
	return ""
}

func TestTooManyGroupsAreNotDescribed(t *testing.T) {
	b := newBench(t)
	for i := range maxNodegroups {
		b.Add(ekssim.Group{Name: fmt.Sprintf("gpu-%03d", i), Max: 1, InstanceTypes: []string{"p5.4xlarge"}})
	}
	if _, err := b.client.Discover(context.Background(), "one", isGPU); err == nil || !strings.Contains(err.Error(), "more than 500 node groups") {
		t.Errorf("Discover gives %v", err)
	}
	if n := b.count("DescribeNodegroup"); n != 0 {
		t.Errorf("%d groups were described", n)
	}
}

func TestDiscoveryIsDenied(t *testing.T) {
	b := newBench(t)
	b.Inject(ekssim.Denied("ListNodegroups"))
	if _, err := b.client.Discover(context.Background(), "one", isGPU); err == nil || !strings.Contains(err.Error(), "ListNodegroups of cluster one: AWS denies eks:ListNodegroups") {
		t.Errorf("Discover gives %v", err)
	}
}
