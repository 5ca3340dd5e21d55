package pair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/template"
)

// threshold is the default of Cluster Autoscaler's --scale-down-utilization-threshold. It empties a
// node at it or below it (pkg/core/scaledown/eligibility/eligibility.go).
const threshold = 0.5

// utilization is how busy Cluster Autoscaler takes a pool with counters to be, as its
// calculatePartitionableDevicesPoolUtilization says (pkg/simulator/dynamicresources/utils/utilization.go at 33c3f97
// of kubernetes-sigs/cluster-autoscaler): the highest ratio of each counter set, divided by how many
// sets devices consume.
func utilization(published []*resourceapi.ResourceSlice, used sets.Set[string]) float64 {
	type counter struct{ set, name string }
	consumed, consumable := map[counter]float64{}, sets.New[string]()
	for _, slice := range published {
		for _, device := range slice.Spec.Devices {
			for _, c := range device.ConsumesCounters {
				consumable.Insert(c.CounterSet)
				for name, of := range c.Counters {
					if used.Has(device.Name) {
						consumed[counter{c.CounterSet, name}] += of.Value.AsApproximateFloat64()
					}
				}
			}
		}
	}
	sum := 0.0
	for _, slice := range published {
		for _, set := range slice.Spec.SharedCounters {
			highest := 0.0
			for name, of := range set.Counters {
				highest = max(highest, consumed[counter{set.Name, name}]/of.Value.AsApproximateFloat64())
			}
			sum += highest
		}
	}
	return sum / float64(consumable.Len())
}

// published gives a node the slices of an instance type.
func (c *calling) published(t *testing.T, instanceType string) {
	t.Helper()
	group := &v1alpha1.GPUNodeGroup{Spec: v1alpha1.GPUNodeGroupSpec{InstanceType: instanceType}}
	predicted, err := template.Predict("gpu.mica.gpu", group, "", nil, template.StartupTaints{})
	if err != nil {
		t.Fatal(err)
	}
	c.node(time.Hour, true).Slices = predicted.Slices
}

func (c *calling) claim(device string, admin bool) {
	node := c.group().Nodes[0]
	c.View.Claims = append(c.View.Claims, &resourceapi.ResourceClaim{Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Driver: "gpu.mica.gpu", Pool: node.Slices[0].Spec.Pool.Name, Device: device, AdminAccess: ptr.To(admin),
		}}},
	}}})
}

// A node whose GPUs are in use is kept, also where Cluster Autoscaler would take it for idle.
func TestBusyNodesAreKept(t *testing.T) {
	const keep = "keep node node-0 for use\n"
	for _, of := range []struct {
		instanceType string
		gpus         int
	}{{"p5.48xlarge", 8}, {"p5.4xlarge", 1}, {"p6-b200.48xlarge", 8}} {
		for used := range of.gpus + 1 {
			t.Run(fmt.Sprintf("%d GPUs of %s", used, of.instanceType), func(t *testing.T) {
				c := newCalling()
				c.published(t, of.instanceType)
				names := sets.New[string]()
				for i := range used {
					c.claim(fmt.Sprintf("gpu-%d", i), false)
					names.Insert(fmt.Sprintf("gpu-%d", i))
				}
				c.claim("gpu-0", true)
				if seen := utilization(c.group().Nodes[0].Slices, names); seen > threshold {
					t.Errorf("Cluster Autoscaler keeps the node by itself, with %.2f: protection for use is not needed any more", seen)
				}
				want := ""
				if float64(used) > threshold*float64(of.gpus) {
					want = keep
				}
				if got := story(c.decide()); got != want {
					t.Errorf("decided %q, want %q", got, want)
				}
			})
		}
	}
}

// Cluster Autoscaler measures right what takes all of a counter, and what has none.
func TestOnlyMisreadNodesAreKept(t *testing.T) {
	c := newCalling()
	c.published(t, "p5.48xlarge")
	used := sets.New[string]()
	for _, slice := range c.group().Nodes[0].Slices {
		for _, device := range slice.Spec.Devices {
			gpu := strings.Split(device.Name, "-mig-")[0]
			taken := slices.ContainsFunc(used.UnsortedList(), func(name string) bool { return strings.HasPrefix(name, gpu) })
			if gpu != device.Name && !taken {
				used.Insert(device.Name)
			}
		}
	}
	if seen := utilization(c.group().Nodes[0].Slices, used); seen != 1 {
		t.Errorf("with a partition of each GPU, Cluster Autoscaler takes the node for %.2f busy", seen)
	}

	c = newCalling()
	c.published(t, "g5.12xlarge")
	for i := range 4 {
		c.claim(fmt.Sprintf("gpu-%d", i), false)
	}
	if got := story(c.decide()); got != "" {
		t.Errorf("decided %q for a node without counters, want nothing", got)
	}
}

func TestBusyNodesAreLetGo(t *testing.T) {
	c := newCalling()
	c.published(t, "p5.48xlarge")
	for i := range 4 {
		c.claim(fmt.Sprintf("gpu-%d", i), false)
	}
	c.group().Nodes[0].Object.Annotations = map[string]string{v1alpha1.AnnotationScaleDownDisabled: "true", v1alpha1.AnnotationProtected: forUse}
	if got, want := story(c.decide()), "let node node-0 be removed again\n"; got != want {
		t.Errorf("decided %q, want %q", got, want)
	}
}
