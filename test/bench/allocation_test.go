package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
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

	"github.com/mica-gpu/mica/test/fixture"
)

// BenchmarkAllocation fills the nodes with one claim after the other, as the
// scheduler does: a fresh allocator for each pod, and the first node that fits.
// It reports the median of what an allocation takes, on all nodes from empty to
// full.
func BenchmarkAllocation(b *testing.B) {
	for _, nodes := range []int{20, 200} {
		for _, kind := range kinds {
			for _, layout := range layouts {
				if nodes > 20 && layout.name != "ours" && layout.name != "nvidias" {
					continue // what was tried is compared on the smaller cluster
				}
				b.Run(fmt.Sprintf("nodes=%d/claim=%s/layout=%s", nodes, kind.name, layout.name), func(b *testing.B) {
					benchmarkAllocation(b, newCluster(layout.pool(b, fixture.Node(b, machine)), nodes), kind)
				})
			}
		}
	}
}

// A kind is what the claims of a benchmark ask for.
type kind struct {
	name, class string
	// expressions are drawn at random.
	expressions []string
}

var kinds = []kind{
	{"whole", "gpu.nvidia.com", []string{`device.attributes["gpu.nvidia.com"].productName == "NVIDIA H100 80GB HBM3"`}},
	{"mig-1g", "mig.nvidia.com", []string{profile("1g.10gb")}},
	{"mig-3g", "mig.nvidia.com", []string{profile("3g.40gb")}},
	{"mig-mixed", "mig.nvidia.com", []string{profile("1g.10gb"), profile("1g.20gb"), profile("2g.20gb"), profile("3g.40gb"), profile("4g.40gb")}},
}

func profile(name string) string {
	return fmt.Sprintf(`device.attributes["gpu.nvidia.com"].profile == %q`, name)
}

func benchmarkAllocation(b *testing.B, c *cluster, kind kind) {
	random := rand.New(rand.NewPCG(1, 5))
	var took []time.Duration
	node := 0
	for b.Loop() {
		claims := []*resourceapi.ResourceClaim{claim(kind.class, kind.expressions[random.IntN(len(kind.expressions))])}
		for {
			start := time.Now()
			results, err := c.allocator(b).Allocate(b.Context(), c.nodes[node], claims)
			elapsed := time.Since(start)
			if err != nil {
				b.Fatal(err)
			}
			if len(results) == 1 {
				took = append(took, elapsed)
				c.take(results[0])
				break
			}
			if node++; node == len(c.nodes) {
				node = 0
				c.state.AllocatedDevices = sets.New[structured.DeviceID]()
			}
		}
	}
	report(b, took)
}

func report(b *testing.B, took []time.Duration) {
	b.Helper()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "median-µs/allocation")
	b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-µs/allocation")
}

// cluster is what the allocator knows.
type cluster struct {
	nodes  []*corev1.Node
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
	cache  *cel.Cache
}

func newCluster(pool resourceslice.Pool, nodes int) *cluster {
	c := &cluster{
		state: structured.AllocatedState{
			AllocatedDevices:         sets.New[structured.DeviceID](),
			AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
		},
		cache: cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}), // as many as the scheduler's
	}
	for n := range nodes {
		name := fmt.Sprintf("node-%03d", n)
		c.nodes = append(c.nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		for i, s := range pool.Slices {
			c.slices = append(c.slices, &resourceapi.ResourceSlice{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, fixture.Driver, name)},
				Spec: resourceapi.ResourceSliceSpec{
					Driver: fixture.Driver, NodeName: &name,
					Pool:    resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
					Devices: s.Devices, SharedCounters: s.SharedCounters,
				},
			})
		}
	}
	return c
}

func (c *cluster) take(result resourceapi.AllocationResult) {
	for _, device := range result.Devices.Results {
		id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
		if device.ShareID == nil {
			c.state.AllocatedDevices.Insert(id)
			continue
		}
		c.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, device.ShareID))
		c.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.ConsumedCapacity))
	}
}

// allocator has the features of a stock 1.37 scheduler.
func (c *cluster) allocator(b *testing.B) structured.Allocator {
	b.Helper()
	features := structured.Features{
		AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
		DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
	}
	allocator, err := structured.NewAllocator(b.Context(), features, c.state, classes{}, c.slices, c.cache)
	if err != nil {
		b.Fatal(err)
	}
	return allocator
}

// classes has the classes that the chart installs.
type classes struct{}

func (c classes) List() ([]*resourceapi.DeviceClass, error) {
	var all []*resourceapi.DeviceClass
	for name := range classTypes {
		class, err := c.Get(name)
		if err != nil {
			return nil, err
		}
		all = append(all, class)
	}
	return all, nil
}

// classTypes are the types of device that the classes select.
var classTypes = map[string]string{
	"gpu.nvidia.com": "gpu", "timeslice.nvidia.com": "timeslice", "mps.nvidia.com": "mps",
	"mig.nvidia.com": "mig", "mig-timeslice.nvidia.com": "mig-timeslice",
}

func (classes) Get(name string) (*resourceapi.DeviceClass, error) {
	kind, known := classTypes[name]
	expression := fmt.Sprintf("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == '%s'", kind)
	if profile, is := strings.CutSuffix(name, profileClasses); is {
		known, expression = true, profileClass(profile)
	}
	if !known {
		return nil, fmt.Errorf("there is no class %q", name)
	}
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{selector(expression)}},
	}, nil
}

func selector(expression string) resourceapi.DeviceSelector {
	return resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}
}

// claim asks for one device of the class. An empty expression selects nothing more.
func claim(class, expression string) *resourceapi.ResourceClaim {
	var selectors []resourceapi.DeviceSelector
	if expression != "" {
		selectors = append(selectors, selector(expression))
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: fixture.Namespace, Name: "claim", UID: types.UID("uid-claim")},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: class,
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           1,
				Selectors:       selectors,
			}}},
		}},
	}
}
