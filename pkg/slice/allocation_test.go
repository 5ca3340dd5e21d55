package slice

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

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
		parentUUID  = fixture.Driver + "/parentUUID"
	)
	profile := func(name string) string {
		return fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == %q`, name)
	}
	var sevenths []string
	for start := range 7 {
		sevenths = append(sevenths, fmt.Sprintf("gpu-0-mig-1g10gb-19-%d", start))
	}
	for name, tc := range map[string]struct {
		machine     string
		class       string // whole GPUs where there is none
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
		"five of one NUMA node of four":           {machine: "p5.48xlarge", count: 5, constraints: []string{numaNode}},
		"by product":                              {machine: "mixed", count: 1, cel: `device.attributes["gpu.nvidia.com"].productName == "NVIDIA A30"`, want: []string{"gpu-0"}},
		"by part of the product":                  {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].productName.lowerAscii().matches("^.*h100.*$")`, want: []string{"gpu-0"}},
		"by memory":                               {machine: "mixed", count: 1, cel: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0`, want: []string{"gpu-2"}},
		"by more memory than there is":            {machine: "p5.48xlarge", count: 1, cel: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("100Gi")) >= 0`},
		"by architecture":                         {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].architecture == "Hopper"`, want: []string{"gpu-0"}},
		"by another architecture":                 {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].architecture == "Blackwell"`},
		"by compute capability":                   {machine: "mixed", count: 1, cel: `device.attributes["gpu.nvidia.com"].cudaComputeCapability.isGreaterThan(semver("9.9.0"))`, want: []string{"gpu-2"}},
		"by driver version":                       {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].driverVersion.compareTo(semver("580.95.5")) >= 0`, want: []string{"gpu-0"}},
		"by index":                                {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].index == 5`, want: []string{"gpu-5"}},
		"a whole GPU beside partitions of others": {machine: "p5.48xlarge", count: 1, taken: []string{"gpu-0-mig-1g10gb-19-6", "gpu-1-mig-2g20gb-14-0"}, want: []string{"gpu-2"}},
		"a partition beside whole GPUs": {machine: "p5.48xlarge", class: migClass, count: 1, cel: profile("3g.40gb"), taken: []string{"gpu-0", "gpu-1"},
			want: []string{"gpu-2-mig-3g40gb-9-4"}},
		"partitions share a GPU":    {machine: "p5.48xlarge", class: migClass, count: 1, cel: profile("3g.40gb"), taken: []string{"gpu-0-mig-1g10gb-19-6"}, want: []string{"gpu-0-mig-3g40gb-9-0"}},
		"seven of one GPU":          {machine: "p5.48xlarge", class: migClass, count: 7, cel: profile("1g.10gb"), constraints: []string{parentUUID}, want: sevenths},
		"eight of one GPU":          {machine: "p5.48xlarge", class: migClass, count: 8, cel: profile("1g.10gb"), constraints: []string{parentUUID}},
		"one more than all of them": {machine: "mig-static", class: migClass, count: 3, cel: profile("7g.40gb")},
		"the smallest is first":     {machine: "p5.48xlarge", class: migClass, count: 1, want: []string{"gpu-0-mig-1g10gb-19-6"}},
		"by memory of a partition":  {machine: "p5.48xlarge", class: migClass, count: 1, cel: `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("30Gi")) >= 0`, want: []string{"gpu-0-mig-3g40gb-9-4"}},
		"by an engine that most have none of": {machine: "p5.48xlarge", class: migClass, count: 1, cel: `device.capacity["gpu.nvidia.com"].ofaEngines.compareTo(quantity("1")) >= 0`,
			want: []string{"gpu-0-mig-1g10gb-me-20-6"}},
		"an administrator's partition":   {machine: "mig-static", class: migClass, count: 2, cel: profile("7g.40gb"), want: []string{"gpu-2-mig-7g40gb-0-0", "gpu-4-mig-7g40gb-0-0"}},
		"partitions of Ampere with MIG":  {machine: "mig-static", class: migClass, count: 1, cel: profile("4g.20gb"), want: []string{"gpu-4-mig-4g20gb-5-0"}},
		"none of Ampere without MIG":     {machine: "p4d.24xlarge", class: migClass, count: 1},
		"whole GPUs of Ampere are whole": {machine: "mig-static", count: 4},
		"with ECC":                       {machine: "p5.48xlarge", count: 1, cel: `device.attributes["gpu.nvidia.com"].?eccEnabled.orValue(false)`, want: []string{"gpu-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, tc.machine, 1)
			cluster.take(tc.taken...)
			got := cluster.allocate(t, claimOf(cmp.Or(tc.class, fixture.Driver), tc.count, tc.cel, tc.constraints))
			if !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// take allocates devices of the first node.
func (c *cluster) take(devices ...string) {
	c.state.AllocatedDevices = sets.New[structured.DeviceID]()
	for _, device := range devices {
		c.state.AllocatedDevices.Insert(structured.MakeDeviceID(fixture.Driver, nodeName(0), device))
	}
}

// allocate returns what a claim gets of the first node, nil where it does not fit.
func (c *cluster) allocate(t testing.TB, claim *resourceapi.ResourceClaim) []string {
	t.Helper()
	var got []string
	for _, device := range c.results(t, claim) {
		got = append(got, device.Device)
	}
	slices.Sort(got)
	return got
}

// results are what a claim gets of the first node.
func (c *cluster) results(t testing.TB, claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	t.Helper()
	results, err := c.allocator(t).Allocate(t.Context(), c.nodes[0], []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	var devices []resourceapi.DeviceRequestAllocationResult
	for _, result := range results {
		devices = append(devices, result.Devices.Results...)
	}
	return devices
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
	return newClusterOf(pool(t, fixture.Node(t, machine)), count)
}

func newClusterOf(published resourceslice.Pool, count int) *cluster {
	c := &cluster{
		state: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
		cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}), // as many as the scheduler's
	}
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

// classes has the classes that the chart installs, and one that selects everything.
type classes struct{}

const (
	migClass          = "mig.nvidia.com"
	timesliceClass    = "timeslice.nvidia.com"
	mpsClass          = "mps.nvidia.com"
	migTimesliceClass = "mig-timeslice.nvidia.com"
	anyClass          = "any"
)

func (classes) List() ([]*resourceapi.DeviceClass, error) {
	class := func(name, expression string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{selector(expression)}},
		}
	}
	return []*resourceapi.DeviceClass{
		class(fixture.Driver, "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"),
		class(migClass, "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig'"),
		class(timesliceClass, "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'timeslice'"),
		class(mpsClass, "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mps'"),
		class(migTimesliceClass, "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig-timeslice'"),
		class(anyClass, "true"),
	}, nil
}

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	all, err := c.List()
	if err != nil {
		return nil, err
	}
	for _, class := range all {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("there is no class %q", name)
}

func selector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

func claimOf(class string, count int, expression string, matchAttributes []string) *resourceapi.ResourceClaim {
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: class,
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
