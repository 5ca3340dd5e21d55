package explain

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

const (
	driver   = "gpu.nvidia.com"
	nodeName = "node-a"
)

// machine builds a node with an offer.
type machine struct {
	node  *corev1.Node
	offer offer
	spec  *resourceapi.ResourceSliceSpec
}

func newMachine() *machine {
	slice := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Driver: driver, NodeName: ptr.To(nodeName),
		Pool: resourceapi.ResourcePool{Name: nodeName, Generation: 1, ResourceSliceCount: 1},
	}}
	return &machine{
		node:  &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName}},
		offer: offer{slices: []*resourceapi.ResourceSlice{slice}, used: devices.Use{}},
		spec:  &slice.Spec,
	}
}

// gpus adds whole GPUs that are alike, two on each NUMA node.
func (m *machine) gpus(n int, product, memory string) *machine {
	for range n {
		i := len(m.spec.Devices)
		m.spec.Devices = append(m.spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type":                            {StringValue: ptr.To("gpu")},
				"productName":                     {StringValue: &product},
				"index":                           {IntValue: ptr.To(int64(i))},
				"cudaComputeCapability":           {VersionValue: ptr.To("9.0.0")},
				"resource.kubernetes.io/numaNode": {IntValue: ptr.To(int64(i / 2))},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse(memory)}},
		})
	}
	return m
}

// partitions adds MIG devices that share a GPU's slices with the first whole GPU: each takes
// one of two. Counters have a slice of their own, or the scheduler does not take the pool.
func (m *machine) partitions(n int) *machine {
	counters := m.offer.slices[0].DeepCopy()
	counters.Spec.Devices = nil
	counters.Spec.SharedCounters = []resourceapi.CounterSet{{
		Name:     "gpu-0-counter-set",
		Counters: map[string]resourceapi.Counter{"memory-slice-0": {Value: resource.MustParse("2")}},
	}}
	m.offer.slices = append(m.offer.slices, counters)
	for _, slice := range m.offer.slices {
		slice.Spec.Pool.ResourceSliceCount = 2
	}
	takes := func(amount string) []resourceapi.DeviceCounterConsumption {
		return []resourceapi.DeviceCounterConsumption{{
			CounterSet: "gpu-0-counter-set",
			Counters:   map[string]resourceapi.Counter{"memory-slice-0": {Value: resource.MustParse(amount)}},
		}}
	}
	m.spec.Devices[0].ConsumesCounters = takes("2")
	for i := range n {
		m.spec.Devices = append(m.spec.Devices, resourceapi.Device{
			Name: fmt.Sprintf("gpu-0-mig-%d", i),
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type":    {StringValue: ptr.To("mig")},
				"profile": {StringValue: ptr.To("1g.10gb")},
			},
			Capacity:         map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("9984Mi")}},
			ConsumesCounters: takes("1"),
		})
	}
	return m
}

// share adds a GPU that four claims may have, by a quarter of its memory.
func (m *machine) share() *machine {
	m.spec.Devices = append(m.spec.Devices, resourceapi.Device{
		Name: fmt.Sprintf("gpu-%d-timeslice", len(m.spec.Devices)), AllowMultipleAllocations: ptr.To(true),
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("timeslice")}},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("40Gi"), RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default:    ptr.To(resource.MustParse("10Gi")),
				ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(resource.MustParse("1Gi")), Step: ptr.To(resource.MustParse("1Gi")), Max: ptr.To(resource.MustParse("40Gi"))},
			}},
		},
	})
	return m
}

// countedShare is a share that is paid for with counters, once for all who have a part.
func (m *machine) countedShare() *machine {
	m.gpus(1, "NVIDIA H200", "143771Mi").partitions(0).share()
	m.spec.Devices[1].ConsumesCounters = m.spec.Devices[0].ConsumesCounters
	return m
}

// taint puts a taint on the first devices.
func (m *machine) taint(n int) *machine {
	for i := range n {
		m.spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: driver + "/xid", Value: "79", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	return m
}

// taintedAs puts a taint with that key on all devices.
func (m *machine) taintedAs(key string) *machine {
	for i := range m.spec.Devices {
		m.spec.Devices[i].Taints = []resourceapi.DeviceTaint{{Key: key, Effect: resourceapi.DeviceTaintEffectNoExecute}}
	}
	return m
}

// taken allocates devices by name.
func (m *machine) taken(names ...string) *machine {
	for _, name := range names {
		m.offer.used[deviceID(name)] = devices.Taken{Whole: true}
	}
	return m
}

// consumed allocates memory of a shared device.
func (m *machine) consumed(name, memory string) *machine {
	m.offer.used[deviceID(name)] = devices.Taken{
		Shared: true, Consumed: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)},
	}
	return m
}

func deviceID(name string) devices.ID {
	return devices.ID{Pool: devices.PoolID{Driver: driver, Name: nodeName}, Name: name}
}

func (m *machine) imagined() *machine {
	m.offer.imagined = true
	return m
}

// halfPublished says that there is a slice more than there is.
func (m *machine) halfPublished() *machine {
	m.spec.Pool.ResourceSliceCount++
	return m
}

func classes() []*resourceapi.DeviceClass {
	class := func(name, kind string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{Selectors: selectors(
				fmt.Sprintf(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == %q`, kind))},
		}
	}
	return []*resourceapi.DeviceClass{class("gpu.nvidia.com", "gpu"), class("mig.nvidia.com", "mig"), class("timeslice.nvidia.com", "timeslice")}
}

func selectors(expressions ...string) []resourceapi.DeviceSelector {
	var found []resourceapi.DeviceSelector
	for _, expression := range expressions {
		found = append(found, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return found
}

// claimOf has one request for each change, named a, b and so on: one whole GPU, changed.
func claimOf(name string, requests ...func(*resourceapi.ExactDeviceRequest)) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}}
	for i, change := range requests {
		exactly := &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu.nvidia.com", AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: 1}
		change(exactly)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: string(rune('a' + i)), Exactly: exactly})
	}
	return claim
}

func wants(n int64, expressions ...string) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) { r.Count, r.Selectors = n, selectors(expressions...) }
}

func ofClass(class string, n int64) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName, r.Count = class, n }
}

func memoryOf(class, memory string) func(*resourceapi.ExactDeviceRequest) {
	return func(r *resourceapi.ExactDeviceRequest) {
		r.DeviceClassName = class
		r.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	}
}

func every(r *resourceapi.ExactDeviceRequest) {
	r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
}

func alike(claim *resourceapi.ResourceClaim, attribute string) *resourceapi.ResourceClaim {
	claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, resourceapi.DeviceConstraint{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(attribute))})
	return claim
}

func different(claim *resourceapi.ResourceClaim, attribute string) *resourceapi.ResourceClaim {
	claim.Spec.Devices.Constraints = append(claim.Spec.Devices.Constraints, resourceapi.DeviceConstraint{DistinctAttribute: ptr.To(resourceapi.FullyQualifiedName(attribute))})
	return claim
}

// firstOf has the requests of the claim as alternatives of one.
func firstOf(claim *resourceapi.ResourceClaim) *resourceapi.ResourceClaim {
	one := resourceapi.DeviceRequest{Name: "any"}
	for _, r := range claim.Spec.Devices.Requests {
		one.FirstAvailable = append(one.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: r.Name, DeviceClassName: r.Exactly.DeviceClassName, AllocationMode: r.Exactly.AllocationMode,
			Count: r.Exactly.Count, Selectors: r.Exactly.Selectors,
		})
	}
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{one}
	return claim
}
