package eks

import (
	"context"
	"fmt"
	"math"
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
	groups := b.discovered(t)
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
			Min: 1, Max: &most[0], Pairing: v1alpha1.PairingObserve, CapacityType: "SPOT",
		},
	}, {
		ObjectMeta: metav1.ObjectMeta{Name: "gpus", Labels: map[string]string{v1alpha1.LabelDiscovered: "eks"}},
		Spec: v1alpha1.GPUNodeGroupSpec{
			Provider:     v1alpha1.NodeGroupProvider{EKS: &v1alpha1.EKSNodegroup{Cluster: "one", Nodegroup: "gpus"}},
			InstanceType: "p5.48xlarge", Max: &most[1], Pairing: v1alpha1.PairingObserve,
		},
	}}
	if diff := cmp.Diff(want, groups); diff != "" {
		t.Errorf("discovered (-want +got):\n%s", diff)
	}
	if n := b.count("ListNodegroups"); n != 2 {
		t.Errorf("%d pages, want 2", n)
	}
}

// discovered are the groups to declare. None has an error.
func (b *bench) discovered(t *testing.T) []v1alpha1.GPUNodeGroup {
	t.Helper()
	all, err := b.client.Discover(context.Background(), "one", isGPU)
	if err != nil {
		t.Fatal(err)
	}
	var groups []v1alpha1.GPUNodeGroup
	for _, found := range all {
		if found.Err != nil {
			t.Errorf("%s: %v", found.Nodegroup, found.Err)
		}
		if found.Group != nil {
			groups = append(groups, *found.Group)
		}
	}
	return groups
}

// An invalid answer about one group affects no other.
func TestNonsenseOfEKSIsOneGroups(t *testing.T) {
	b := newBench(t)
	gpu := func(name string, change func(*ekssim.Group)) {
		g := ekssim.Group{Name: name, Max: 3, InstanceTypes: []string{"p5.4xlarge"}}
		change(&g)
		b.Add(g)
	}
	want := map[string]string{
		"a b":           `the invalid name "a b"`,
		"less-than-min": "from 5 to 3 nodes",
	}
	gpu("a b", func(*ekssim.Group) {})
	gpu("less-than-min", func(g *ekssim.Group) { g.Min = 5 })
	all, err := b.client.Discover(context.Background(), "one", isGPU)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(want)+1 {
		t.Errorf("%d node groups are found, want %d", len(all), len(want)+1)
	}
	for _, found := range all {
		if text, bad := want[found.Nodegroup]; bad {
			if found.Err == nil || found.Group != nil || !strings.Contains(found.Err.Error(), text) || len(found.Err.Error()) > 500 {
				t.Errorf("%s: %v, want %q", found.Nodegroup, found.Err, text)
			}
		} else if found.Err != nil || found.Group == nil {
			t.Errorf("%s: %v", found.Nodegroup, found.Err)
		}
	}
}

func TestImpossibleSizesAreRefused(t *testing.T) {
	for name, sizes := range map[string][3]int{"less than the least": {5, 3, 3}, "negative": {-1, 3, 0}, "endless": {0, math.MaxInt32, 0}, "wanted without end": {0, 3, math.MaxInt32}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Change(gpus.Nodegroup, func(g *ekssim.Group) { g.Min, g.Max, g.Desired = sizes[0], sizes[1], sizes[2] })
			group := &v1alpha1.GPUNodeGroup{}
			group.Spec.Provider.EKS = &gpus
			if n := b.client.Describe(t.Context(), group); n.Err == nil || !strings.Contains(n.Err.Error(), "impossible sizes") {
				t.Errorf("it counts: %+v", n)
			}
		})
	}
}

// Discovery goes on without a group that cannot be described, leaves out one that is gone, and reads only the beginning of
// a huge answer.
func TestAGroupThatCannotBeDescribedLeavesTheOthers(t *testing.T) {
	fault := func(status int, code, message string) ekssim.Fault {
		return ekssim.Fault{Operation: "DescribeNodegroup", Times: 1, Status: status, Code: code, Message: message}
	}
	for name, test := range map[string]struct {
		fault ekssim.Fault
		want  string
		found int
	}{
		"it fails":    {fault(400, "InvalidRequestException", "no"), "InvalidRequestException", 2},
		"it is gone":  {fault(404, "ResourceNotFoundException", "No node group found"), "", 1},
		"it is large": {fault(400, "InvalidRequestException", strings.Repeat("x", 2*maxAnswer)), "DescribeNodegroup of node group gpus of cluster one: the answer has more than 1048576 bytes", 2},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.Add(ekssim.Group{Name: "other", Max: 3, InstanceTypes: []string{"p5.4xlarge"}})
			b.Inject(test.fault)
			all, err := b.client.Discover(context.Background(), "one", isGPU)
			if err != nil || len(all) != test.found {
				t.Fatalf("%d node groups are found, want %d: %v", len(all), test.found, err)
			}
			good := 0
			for _, found := range all {
				switch {
				case found.Err == nil && found.Group != nil:
					good++
				case found.Err == nil || !strings.Contains(found.Err.Error(), test.want) || len(found.Err.Error()) > maxAnswer:
					t.Errorf("%s: %.200v, want %q", found.Nodegroup, found.Err, test.want)
				}
			}
			if good != 1 {
				t.Errorf("%d groups are declared, want the other", good)
			}
		})
	}
}

// suffix is the part of the object's name that makes it unique.
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
