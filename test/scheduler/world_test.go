package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// world is a random cluster.
type world struct {
	random *rand.Rand
	// uuids tells that pods may select devices by UUID, which sets all nodes apart; calm that
	// nodes of one machine hardly differ.
	uuids, calm bool

	classes []*resourceapi.DeviceClass
	nodes   []*node
	// network are slices that are no node's own.
	network []*resourceapi.ResourceSlice
	// claims are those that are allocated.
	claims []*resourceapi.ResourceClaim
	// pods wait.
	pods []*pod
}

type node struct {
	object *corev1.Node
	slices []*resourceapi.ResourceSlice
	pods   []*corev1.Pod
}

type pod struct {
	object *corev1.Pod
	claims []*resourceapi.ResourceClaim
}

func (w *world) objects() []*corev1.Node {
	var all []*corev1.Node
	for _, n := range w.nodes {
		all = append(all, n.object)
	}
	return all
}

func (w *world) running() []*corev1.Pod {
	var all []*corev1.Pod
	for _, n := range w.nodes {
		all = append(all, n.pods...)
	}
	return all
}

func (w *world) slices() []*resourceapi.ResourceSlice {
	all := slices.Clone(w.network)
	for _, n := range w.nodes {
		all = append(all, n.slices...)
	}
	return all
}

// in is true in so many of a hundred cases.
func (w *world) in(percent int) bool { return w.random.IntN(100) < percent }

func pick[T any](w *world, all ...T) T { return all[w.random.IntN(len(all))] }

var machines = []string{"p5.48xlarge", "p4d.24xlarge", "g5.12xlarge", "g6.xlarge", "mig-static", "mixed"}

// hardware is read once: a test has many worlds.
var hardware = map[string]gpu.Node{}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{random: rand.New(rand.NewPCG(seed, 37)), classes: classes()}
	w.uuids, w.calm = w.in(20), w.in(60)
	for len(w.nodes) < 6 {
		w.addNodes(t)
	}
	if w.in(40) {
		w.addNetwork()
	}
	w.allocate()
	for i := range 12 {
		w.pods = append(w.pods, w.newPod(fmt.Sprintf("pod-%02d", i)))
	}
	return w
}

func classes() []*resourceapi.DeviceClass {
	class := func(name, expression string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.DeviceClassSpec{Selectors: selectors(expression)}}
	}
	ofType := func(name, of string) *resourceapi.DeviceClass {
		return class(name, fmt.Sprintf(`device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == %q`, of))
	}
	whole := ofType("gpu.nvidia.com", "gpu")
	whole.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	shared := ofType("timeslice.nvidia.com", "timeslice")
	shared.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu.shared")
	return []*resourceapi.DeviceClass{
		whole, ofType("mig.nvidia.com", "mig"), shared, ofType("mps.nvidia.com", "mps"),
		class("any", `device.driver == "gpu.nvidia.com"`), class("nic", `device.driver == "nic.example.com"`),
	}
}

func selectors(expressions ...string) []resourceapi.DeviceSelector {
	var all []resourceapi.DeviceSelector
	for _, expression := range expressions {
		all = append(all, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return all
}

// addNodes adds some nodes of one type, which differ in little.
func (w *world) addNodes(t *testing.T) {
	t.Helper()
	machine := pick(w, machines...)
	found, ok := hardware[machine]
	if !ok {
		found = fixture.Node(t, machine)
		hardware[machine] = found
	}
	found.GPUs = found.GPUs[:min(len(found.GPUs), 1+w.random.IntN(3))]
	policy := pick(w,
		gpu.Policy{Whole: true, MIG: true},
		gpu.Policy{Whole: true},
		gpu.Policy{Whole: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}},
		gpu.Policy{Whole: true, MIG: true, Consumable: &gpu.ConsumableShares{By: gpu.ByMemory}},
		gpu.Policy{Whole: true, Consumable: &gpu.ConsumableShares{By: gpu.ByCount, Count: 3}, TimeSlicing: &gpu.TimeSlicing{Replicas: 2}},
		gpu.Policy{Whole: true, MPS: &gpu.MPS{Clients: 3}, TimeSlicing: &gpu.TimeSlicing{Replicas: 2}})
	pool := slice.Pool(found, gpu.Shapes(found.GPUs, func(gpu.GPU) gpu.Policy { return policy }), nil)
	labels := w.labels()
	for range 1 + w.random.IntN(3) {
		n := &node{object: w.newNode(fmt.Sprintf("node-%d", len(w.nodes)), labels)}
		if w.in(90) {
			n.slices = w.publish(n.object.Name, pool)
		}
		for range w.random.IntN(3) {
			n.pods = append(n.pods, w.newRunning(n.object.Name, len(n.pods)))
		}
		w.nodes = append(w.nodes, n)
	}
}

func (w *world) labels() map[string]string {
	all := map[string]string{"zone": pick(w, "a", "b")}
	if w.in(50) {
		all["pool"] = pick(w, "x", "y")
	}
	if w.in(50) {
		all["size"] = pick(w, "3", "10")
	}
	return all
}

func (w *world) newNode(name string, labels map[string]string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for key, value := range labels {
		n.Labels[key] = value
	}
	if w.in(95) {
		n.Labels[corev1.LabelHostname] = name
	}
	n.Spec.Unschedulable = w.in(5)
	if w.in(20) {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: pick(w, "gpu", "spot"), Value: pick(w, "", "true"), Effect: pick(w, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute, corev1.TaintEffectPreferNoSchedule)})
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse(pick(w, "2", "8", "8")),
		corev1.ResourceMemory:           resource.MustParse(pick(w, "8Gi", "64Gi", "64Gi")),
		corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
		corev1.ResourcePods:             resource.MustParse(pick(w, "3", "20", "20")),
	}
	if w.in(10) {
		n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse(pick(w, "0", "2"))
	}
	if w.in(20) {
		n.Status.Allocatable["example.com/fpga"] = resource.MustParse("1")
	}
	return n
}

// publish makes the node's slices, sometimes tainted, in renewal, or not all of them.
func (w *world) publish(name string, pool resourceslice.Pool) []*resourceapi.ResourceSlice {
	generation := int64(1 + w.random.IntN(2))
	var all []*resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		published := &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, fixture.Driver, name)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: fixture.Driver, NodeName: &name,
				Pool:    resourceapi.ResourcePool{Name: "pool-of-" + name, Generation: generation, ResourceSliceCount: int64(len(pool.Slices))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		}
		published = published.DeepCopy()
		for j := range published.Spec.Devices {
			w.vary(&published.Spec.Devices[j], name)
		}
		all = append(all, published)
	}
	switch {
	case w.in(4):
		all = all[1:] // in renewal
	case w.in(8) && generation > 1:
		old := all[0].DeepCopy()
		old.Name = "old-" + old.Name
		old.Spec.Pool.Generation--
		all = append(all, old)
	case w.in(3) && len(all[0].Spec.Devices) > 1:
		all[0].Spec.Devices[1].Name = all[0].Spec.Devices[0].Name // invalid
	}
	return all
}

// vary gives a device what differs from node to node.
func (w *world) vary(d *resourceapi.Device, name string) {
	for _, attribute := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
		if value, ok := d.Attributes[attribute]; ok {
			text := name + *value.StringValue
			d.Attributes[attribute] = resourceapi.DeviceAttribute{StringValue: ptr.To(text[:min(len(text), 64)])}
		}
	}
	if w.calm && !w.in(3) {
		return
	}
	if w.in(3) || w.calm {
		d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: pick(w, "xid", "maintenance"), Effect: pick(w, resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute, resourceapi.DeviceTaintEffectNone)})
	}
	if w.in(2) {
		delete(d.Attributes, "productName")
	}
	if w.in(2) {
		d.BindingConditions, d.BindingFailureConditions = []string{"ready"}, []string{"failed"}
	}
}

// addNetwork adds devices that several nodes reach.
func (w *world) addNetwork() {
	device := func(i int) resourceapi.Device {
		return resourceapi.Device{Name: fmt.Sprintf("nic-%d", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"uuid": {StringValue: ptr.To(fmt.Sprintf("nic-%d", i))}, "speed": {IntValue: ptr.To(int64(100 * (1 + i%2)))},
		}}
	}
	zone := func(name string) *corev1.NodeSelector {
		return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{name},
		}}}}}
	}
	spec := resourceapi.ResourceSliceSpec{
		Driver: "nic.example.com",
		Pool:   resourceapi.ResourcePool{Name: pick(w, "fabric", "pool-of-node-2"), Generation: 1, ResourceSliceCount: 1},
	}
	for i := range 1 + w.random.IntN(3) {
		spec.Devices = append(spec.Devices, device(i))
	}
	switch w.random.IntN(4) {
	case 0:
		spec.AllNodes = ptr.To(true)
	case 1:
		spec.NodeSelector = zone("a")
	case 2:
		spec.PerDeviceNodeSelection = ptr.To(true)
		for i := range spec.Devices {
			switch i {
			case 0:
				spec.Devices[i].NodeName = ptr.To("node-1")
			case 1:
				spec.Devices[i].NodeSelector = zone("b")
			default:
				spec.Devices[i].AllNodes = ptr.To(true)
			}
		}
	case 3: // one pool, two nodes
		spec.Pool.ResourceSliceCount = 2
		spec.NodeName = ptr.To("node-0")
		other := spec.DeepCopy()
		other.NodeName = ptr.To("node-1")
		for i := range other.Devices {
			other.Devices[i].Name = "other-" + other.Devices[i].Name
		}
		w.network = append(w.network, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "fabric-1"}, Spec: *other})
	}
	w.network = append(w.network, &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "fabric-0"}, Spec: spec})
}

// allocate gives some devices to claims of pods that are not told of.
func (w *world) allocate() {
	for _, s := range w.slices() {
		for _, d := range s.Spec.Devices {
			if !w.in(5) || w.calm && !w.in(20) {
				continue
			}
			result := resourceapi.DeviceRequestAllocationResult{Request: "r", Driver: s.Spec.Driver, Pool: s.Spec.Pool.Name, Device: d.Name}
			if ptr.Deref(d.AllowMultipleAllocations, false) {
				result.ShareID = ptr.To(types.UID(fmt.Sprintf("share-%d", len(w.claims))))
				result.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(pick(w, "1Gi", "8Gi"))}
			} else if w.in(20) {
				result.AdminAccess = ptr.To(true)
			}
			claim := fixture.Claim(fmt.Sprintf("taken-%d", len(w.claims)), result)
			w.claims = append(w.claims, claim)
		}
	}
}
