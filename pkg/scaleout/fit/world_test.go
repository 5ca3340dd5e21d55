package fit

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

const migClass = "mig.nvidia.com"

// deviceClasses are those of the chart, as far as these tests need them.
func deviceClasses() []*resourceapi.DeviceClass {
	class := func(name, expression string) *resourceapi.DeviceClass {
		return &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       resourceapi.DeviceClassSpec{Selectors: selectors(expression)},
		}
	}
	whole := class(fixture.Driver, `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"`)
	whole.Spec.ExtendedResourceName = ptr.To("nvidia.com/gpu")
	return []*resourceapi.DeviceClass{
		whole,
		class(migClass, `device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "mig"`),
	}
}

func selectors(expressions ...string) []resourceapi.DeviceSelector {
	var all []resourceapi.DeviceSelector
	for _, expression := range expressions {
		all = append(all, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	return all
}

// published are the slices of a simulated machine as the node of that name publishes them.
// UUIDs are the node's own.
func published(t testing.TB, machine, node string) []*resourceapi.ResourceSlice {
	t.Helper()
	pool := slice.Pool(fixture.Node(t, machine), gpu.Shapes(fixture.Node(t, machine).GPUs, gpu.ByDefault), nil)
	var all []*resourceapi.ResourceSlice
	for i, s := range pool.Slices {
		all = append(all, &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%05x-%s-%s", i, fixture.Driver, node)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: fixture.Driver, NodeName: &node,
				Pool:    resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				Devices: s.Devices, SharedCounters: s.SharedCounters,
			},
		})
	}
	return renamed(all, node)
}

// renamed are copies of slices that another node publishes.
func renamed(all []*resourceapi.ResourceSlice, node string) []*resourceapi.ResourceSlice {
	var copies []*resourceapi.ResourceSlice
	for i, s := range all {
		s = s.DeepCopy()
		s.Name = fmt.Sprintf("%05x-%s-%s", i, fixture.Driver, node)
		s.Spec.NodeName, s.Spec.Pool.Name = &node, node
		for j := range s.Spec.Devices {
			attributes := s.Spec.Devices[j].Attributes
			for _, name := range []resourceapi.QualifiedName{"uuid", "parentUUID"} {
				if value, ok := attributes[name]; ok {
					attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(truncated(node + *value.StringValue))}
				}
			}
		}
		copies = append(copies, s)
	}
	return copies
}

func truncated(s string) string { return s[:min(len(s), 64)] }

// large is a node with room for many pods.
func large(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("192"),
			corev1.ResourceMemory: resource.MustParse("2000Gi"),
			corev1.ResourcePods:   resource.MustParse("250"),
		}},
	}
}

// requesting is a pod with one container.
func requesting(name string, requests map[string]string) *corev1.Pod {
	list := corev1.ResourceList{}
	for resourceName, quantity := range requests {
		list[corev1.ResourceName(resourceName)] = resource.MustParse(quantity)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: list}}}},
	}
}

// claiming is a claim of one request.
func claiming(class string, count int64, expressions ...string) PodClaim {
	return claimOf(resourceapi.DeviceRequest{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, Count: count, Selectors: selectors(expressions...),
	}})
}

func claimOf(requests ...resourceapi.DeviceRequest) PodClaim {
	return PodClaim{Name: "gpus", Claim: &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}}
}
