package slice

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fixture"
)

// These tests hold the slices against the scheduler's own allocator.

func TestSchedulerAllocates(t *testing.T) {
	const (
		nvlinkGroup = fixture.Driver + "/nvlinkGroup"
		numaNode    = "resource.kubernetes.io/numaNode"
	)
	for name, tc := range map[string]struct {
		machine     string
		count       int
		cel         string
		constraints []string
		taken       []string
		want        []string // nil: does not fit
	}{
		"one GPU": {machine: "p5.48xlarge", count: 1, want: []string{"gpu-0"}},
		"the next one": {machine: "p5.48xlarge", count: 1, taken: []string{"gpu-0", "gpu-1"},
			want: []string{"gpu-2"}},
		"all":                        {machine: "p5.48xlarge", count: 8, want: []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7"}},
		"one more than all":          {machine: "p5.48xlarge", count: 9},
		"four of one NVLink group":   {machine: "p5.48xlarge", count: 4, constraints: []string{nvlinkGroup}, want: []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}},
		"two NVLinked without links": {machine: "g5.12xlarge", count: 2, constraints: []string{nvlinkGroup}},
		"four of one NUMA node":      {machine: "p5.48xlarge", count: 4, constraints: []string{numaNode}, want: []string{"gpu-0", "gpu-1", "gpu-2", "gpu-3"}},
		"four of the other NUMA node": {machine: "p5.48xlarge", count: 4, constraints: []string{numaNode, nvlinkGroup}, taken: []string{"gpu-3"},
			want: []string{"gpu-4", "gpu-5", "gpu-6", "gpu-7"}},
		"five of one NUMA node of four": {machine: "p5.48xlarge", count: 5, constraints: []string{numaNode}},
		"by product":                    {machine: "mixed", count: 1, cel: `device.attributes["gpu.nvidia.com"].productName == "NVIDIA A30"`, want: []string{"gpu-0"}},
		"by part of the product":        {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*h100.*$")`, want: []string{"gpu-0"}},
		"by memory":                     {machine: "mixed", count: 1, cel: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`, want: []string{"gpu-2"}},
		"by more memory than there is":  {machine: "p5.48xlarge", count: 1, cel: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("100Gi")) >= 0`},
		"by architecture":               {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].architecture == "Hopper"`, want: []string{"gpu-0"}},
		"by another architecture":       {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].architecture == "Blackwell"`},
		"by compute capability":         {machine: "mixed", count: 1, cel: `device.attributes["gpu.nvidia.com"].cudaComputeCapability.isGreaterThan(semver("9.9.0"))`, want: []string{"gpu-2"}},
		"by driver version":             {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("580.95.5")) >= 0`, want: []string{"gpu-0"}},
		"by index":                      {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].index == 5`, want: []string{"gpu-5"}},
		"with ECC":                      {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].?eccEnabled.orValue(false)`, want: []string{"gpu-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, tc.machine, 1)
			for _, device := range tc.taken {
				cluster.state.AllocatedDevices.Insert(structured.MakeDeviceID(fixture.Driver, nodeName(0), device))
			}
			results, err := cluster.allocator(t).Allocate(t.Context(), cluster.nodes[0], []*resourceapi.ResourceClaim{claimFor(tc.count, tc.cel, tc.constraints)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, result := range results {
				for _, device := range result.Devices.Results {
					got = append(got, device.Device)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// BenchmarkAllocation fills the nodes, a claim for one GPU after the other, as
// the scheduler does: a fresh allocator for each pod, the first node that fits.
func BenchmarkAllocation(b *testing.B) {
	for _, count := range []int{20, 200} {
		b.Run(fmt.Sprintf("nodes=%d", count), func(b *testing.B) {
			cluster := newCluster(b, "p5.48xlarge", count)
			claims := []*resourceapi.ResourceClaim{claimFor(1, `device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"`, nil)}
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				node := cluster.nodes[i/8%count]
				if i%(8*count) == 0 {
					cluster.state.AllocatedDevices = sets.New[structured.DeviceID]()
				}
				start := time.Now()
				results, err := cluster.allocator(b).Allocate(b.Context(), node, claims)
				took = append(took, time.Since(start))
				if err != nil || len(results) != 1 {
					b.Fatalf("allocation %d: %v, %v", i, results, err)
				}
				for _, device := range results[0].Devices.Results {
					cluster.state.AllocatedDevices.Insert(structured.MakeDeviceID(device.Driver, device.Pool, device.Device))
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "median-µs/allocation")
		})
	}
}

// cluster is what the allocator knows.
type cluster struct {
	nodes  []*corev1.Node
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
	cache  *cel.Cache
}

func nodeName(i int) string { return fmt.Sprintf("node-%03d", i) }

func newCluster(t testing.TB, machine string, count int) *cluster {
	t.Helper()
	c := &cluster{
		state: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
		cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}), // as many as the scheduler's
	}
	published := pool(t, fixture.Node(t, machine))
	for i := range count {
		c.nodes = append(c.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}})
		c.slices = append(c.slices, resourceSlices(published, nodeName(i))...)
	}
	return c
}

func resourceSlices(pool resourceslice.Pool, node string) []*resourceapi.ResourceSlice {
	var slices []*resourceapi.ResourceSlice
	for i, spec := range specs(pool) {
		spec.Driver = fixture.Driver
		spec.NodeName = &node
		spec.Pool = resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))}
		slices = append(slices, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, fixture.Driver, node)},
			Spec:       spec,
		})
	}
	return slices
}

// allocator has the features of a stock 1.37 scheduler.
func (c *cluster) allocator(t testing.TB) structured.Allocator {
	t.Helper()
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
		DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
	}
	allocator, err := structured.NewAllocator(t.Context(), features, c.state, classes{}, c.slices, c.cache)
	if err != nil {
		t.Fatal(err)
	}
	return allocator
}

// classes has the class that the chart installs.
type classes struct{}

func (classes) List() ([]*resourceapi.DeviceClass, error) {
	return []*resourceapi.DeviceClass{{
		ObjectMeta: metav1.ObjectMeta{Name: fixture.Driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{
			selector("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
		}},
	}}, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	all, err := c.List()
	if err != nil || name != all[0].Name {
		return nil, fmt.Errorf("no class %q: %w", name, err)
	}
	return all[0], nil
}

func selector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

func claimFor(count int, expression string, matchAttributes []string) *resourceapi.ResourceClaim {
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: fixture.Driver,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           int64(count),
	}
	if expression != "" {
		request.Selectors = []resourceapi.DeviceSelector{selector(expression)}
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "claim", UID: types.UID("uid-claim")},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &request}},
		}},
	}
	for _, attribute := range matchAttributes {
		claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints,
			resourceapi.DeviceConstraint{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(attribute))})
	}
	return claim
}
