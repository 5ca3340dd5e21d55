package fit

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fixture"
)

// twoShared are two devices that all nodes share.
func twoShared() *resourceapi.ResourceSlice {
	device := func(name string) resourceapi.Device {
		return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: ptr.To("gpu")}, "name": {StringValue: &name}}}
	}
	return ofNetwork(fixture.Driver, device("gpu-0"), device("gpu-1"))
}

func ofNetwork(driver string, devices ...resourceapi.Device) *resourceapi.ResourceSlice {
	return &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "network"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, AllNodes: ptr.To(true),
			Pool:    resourceapi.ResourcePool{Name: "network", Generation: 1, ResourceSliceCount: 1},
			Devices: devices,
		},
	}
}

// Each state has answers of its own, also after those of others.
func TestAnswersOfOneStateAreNoOthers(t *testing.T) {
	c := New(Facts{Classes: deviceClasses(), Slices: []*resourceapi.ResourceSlice{twoShared()}})
	pods := map[string]*Pod{}
	for _, device := range []string{"gpu-0", "gpu-1"} {
		pod, err := c.Pod(requesting(device, nil), []PodClaim{claiming(fixture.Driver, 1, `device.attributes["gpu.nvidia.com"].name == "`+device+`"`)})
		if err != nil {
			t.Fatal(err)
		}
		pods[device] = pod
	}
	a, b := c.Machine(Node{Object: large("a")}), c.Machine(Node{Object: large("b")})
	start := c.Shared()
	for _, taken := range []string{"gpu-0", "gpu-1", "gpu-0"} {
		_, after := put(t, start, a, pods[taken])
		for device, pod := range pods {
			left, _ := put(t, after, b, pod)
			if (left == nil) != (device == taken) {
				t.Errorf("with %s taken, %s is free: %v", taken, device, left != nil)
			}
		}
	}
}

// Two nodes share two devices. Pods take them in states that begin with the same one.
func TestAStateDoesNotChange(t *testing.T) {
	c := New(Facts{Classes: deviceClasses(), Slices: []*resourceapi.ResourceSlice{twoShared()}})
	pod, err := c.Pod(requesting("p", nil), []PodClaim{claiming(fixture.Driver, 1)})
	if err != nil {
		t.Fatal(err)
	}
	a, b := c.Machine(Node{Object: large("a")}), c.Machine(Node{Object: large("b")})
	start := c.Shared()
	for round, first := range []*Machine{a, b, a} {
		one, middle := put(t, start, first, pod)
		if one == nil || one.Apart(first, pod) {
			t.Fatalf("round %d: the first pod does not take a device that both nodes share", round)
		}
		// Without a commit, the machine alone knows what its pods take.
		two, _ := put(t, start, one, pod)
		if two == nil {
			t.Fatalf("round %d: the machine with the first device does not get the second", round)
		}
		if three, _ := put(t, start, two, pod); three != nil {
			t.Fatalf("round %d: the machine with both devices gets a third", round)
		}
		for range 2 {
			two, end := put(t, middle, b, pod)
			if two == nil {
				t.Fatalf("round %d: the second device is not free", round)
			}
			if three, _ := put(t, end, a, pod); three != nil {
				t.Fatalf("round %d: a third pod fits on two devices", round)
			}
		}
	}
}

// The first of pods that have to be with each other may be anywhere, in each state.
func TestAffinityCountsInItsState(t *testing.T) {
	object := requesting("p", nil)
	object.Labels = map[string]string{"app": "p"}
	object.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
		TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: object.Labels}}}}}
	c := New(Facts{Pods: []*corev1.Pod{object}})
	pod, err := c.Pod(object, nil)
	if err != nil {
		t.Fatal(err)
	}
	a := c.Machine(Node{Object: large("a")})
	start := c.Shared()
	for range 2 {
		with, after := put(t, start, a, pod)
		if with == nil || with.Apart(a, pod) {
			t.Fatal("the first pod does not attract others")
		}
		if second, _ := put(t, after, a, pod); second != nil {
			t.Fatal("the second pod fits on a node without the first")
		}
	}
}

// put places and commits a pod; nil: it does not fit.
func put(t *testing.T, s Shared, m *Machine, p *Pod) (*Machine, Shared) {
	t.Helper()
	left, miss, err := s.Place(t.Context(), m, p)
	if err != nil {
		t.Fatal(err)
	}
	if miss != nil {
		return nil, s
	}
	return left, s.Commit(left)
}
