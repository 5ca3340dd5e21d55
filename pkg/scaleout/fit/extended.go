package fit

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// extendedRequests are the requests for devices that the scheduler makes for one extended resource of a pod: one for
// each container that runs as long as the pod, and one for the init container that needs the most beyond what these
// containers leave it. The names are the scheduler's. They also determine the allocator's order.
func extendedRequests(pod *corev1.Pod, name corev1.ResourceName, class string) []resourceapi.DeviceRequest {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	lasting := make([]int64, len(containers))
	var requests []resourceapi.DeviceRequest
	for i := range containers {
		if i < len(pod.Spec.InitContainers) && !sidecar(&containers[i]) {
			continue
		}
		if lasting[i] = whole64(&containers[i], name); lasting[i] > 0 {
			requests = append(requests, extendedRequest(i, &containers[i], name, class, lasting[i]))
		}
	}
	var most *resourceapi.DeviceRequest
	for i := range pod.Spec.InitContainers {
		if sidecar(&containers[i]) {
			continue
		}
		more := whole64(&containers[i], name)
		for _, later := range lasting[i:] {
			more -= later
		}
		if more > 0 && (most == nil || most.Exactly.Count < more) {
			request := extendedRequest(i, &containers[i], name, class, more)
			most = &request
		}
	}
	if most != nil {
		requests = append(requests, *most)
	}
	return requests
}

// whole64 is the number that a container requests.
func whole64(c *corev1.Container, name corev1.ResourceName) int64 {
	quantity := c.Resources.Requests[name]
	n, ok := quantity.AsInt64()
	if !ok {
		return 0
	}
	return n
}

func extendedRequest(container int, c *corev1.Container, name corev1.ResourceName, class string, count int64) resourceapi.DeviceRequest {
	place := slices.Index(sortedKeys(c.Resources.Requests), name)
	return resourceapi.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", container, place),
		Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class,
			AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
			Count:           count,
		},
	}
}

// extendedClaim is the claim that the scheduler makes for the extended resources that the node does not offer itself,
// and its name for the pod's owner; nil if the node offers all of them.
func (p *Pod) extendedClaim(offered map[corev1.ResourceName]bool) (*resourceapi.ResourceClaim, string) {
	var requests []resourceapi.DeviceRequest
	var names []string
	for _, name := range sortedKeys(p.extended) {
		if !offered[name] {
			requests = append(requests, p.extended[name]...)
			names = append(names, string(name))
		}
	}
	if len(requests) == 0 {
		return nil, ""
	}
	slices.SortFunc(requests, func(a, b resourceapi.DeviceRequest) int { return cmp.Compare(a.Name, b.Name) })
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: p.object.Namespace, Name: p.object.Name + "-extended-resources"}}
	claim.Spec.Devices.Requests = requests
	return claim, "extended resource " + strings.Join(names, " and ")
}
