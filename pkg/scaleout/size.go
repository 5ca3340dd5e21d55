package scaleout

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/mica-gpu/mica/pkg/scaleout/fit"
)

// size says how hard it is to find room for a pod.
type size struct {
	devices, constraints int
	// narrow counts the pod's conditions on labels of nodes.
	narrow      int
	cpu, memory int64
}

func (s size) compare(other size) int {
	return cmp.Or(
		cmp.Compare(s.devices, other.devices),
		cmp.Compare(s.constraints, other.constraints),
		cmp.Compare(s.narrow, other.narrow),
		cmp.Compare(s.cpu, other.cpu),
		cmp.Compare(s.memory, other.memory),
	)
}

// wholeNode is the weight of a request for all devices of a node.
const wholeNode = 1 << 16

// measure sets size and requests.
func (k *kind) measure() {
	if k.example == nil {
		return
	}
	k.requests = corev1.ResourceList{}
	for name, quantity := range resourcehelper.PodRequests(k.pods[0].pod, resourcehelper.PodResourcesOptions{}) {
		switch name {
		case corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage:
			k.requests[name] = quantity
		}
	}
	k.size = size{cpu: k.requests.Cpu().MilliValue(), memory: k.requests.Memory().Value()}
	spec := k.pods[0].pod.Spec
	k.size.narrow = len(spec.NodeSelector)
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil && spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		k.size.narrow++
	}
	k.measureClaims()
}

// measureClaims adds the pods' claims to size.
func (k *kind) measureClaims() {
	claims, _ := k.example.Claims()
	for _, claim := range claims {
		k.size.constraints += len(claim.Spec.Devices.Constraints)
		for _, request := range claim.Spec.Devices.Requests {
			k.size.devices += weight(request)
		}
	}
}

// weight counts the devices of a request; of alternatives, the most.
func weight(request resourceapi.DeviceRequest) int {
	most := 0
	for _, alternative := range fit.Alternatives(request) {
		if alternative.AllocationMode == resourceapi.DeviceAllocationModeAll {
			return wholeNode
		}
		most = max(most, int(min(alternative.Count, wholeNode)), 1) // sums of larger ones may overflow
	}
	return most
}
