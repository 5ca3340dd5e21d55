package template

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Reservations of EKS images, as nodeadm of awslabs/amazon-eks-ami computes them: memory by the number of pods, and the
// hard eviction threshold.
const (
	reservedMemoryMiB       = 255
	reservedMemoryMiBPerPod = 11
	evictionMemoryMiB       = 100
)

// kernelPermille estimates how much of EC2's figure for memory the hypervisor and the kernel keep at most. It is
// Karpenter's default (VM_MEMORY_OVERHEAD_PERCENT). The node will rather have more memory: a pod that just fits waits,
// instead of starting a node on which it does not fit.
const kernelPermille = 75

// defaultMaxPods is the default of kubelet, and of nodeadm for types whose network interfaces it does not know.
const defaultMaxPods = 110

// allocatable is that of a new node: the given quantities, and otherwise those of the instance type less the
// reservations of EKS. Storage is unknown unless it is given.
func (h hardware) allocatable(given corev1.ResourceList) (corev1.ResourceList, error) {
	list := corev1.ResourceList{}
	pods := int64(defaultMaxPods)
	if h.instance.MaxPods > 0 {
		pods = int64(h.instance.MaxPods)
	}
	if quantity, ok := given[corev1.ResourcePods]; ok {
		pods = quantity.Value()
	}
	list[corev1.ResourcePods] = *resource.NewQuantity(pods, resource.DecimalSI)
	if cpus := h.instance.VCPUs; cpus > 0 {
		list[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(cpus)*1000-reservedMilliCPU(cpus), resource.DecimalSI)
	}
	if mib := int64(h.instance.MemoryMiB); mib > 0 {
		left := mib - mib*kernelPermille/1000 - reservedMemoryMiB - reservedMemoryMiBPerPod*pods - evictionMemoryMiB
		list[corev1.ResourceMemory] = *resource.NewQuantity(max(left, 0)<<20, resource.BinarySI)
	}
	for name, quantity := range given {
		list[name] = quantity.DeepCopy()
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		if _, known := list[name]; !known {
			return nil, fmt.Errorf("how much %s its pods can have is not known: %w", name, errGiveAllocatable)
		}
	}
	return list, nil
}

var errGiveAllocatable = errors.New("give cpu and memory in spec.template.allocatable, as kubectl describe node shows them on such a node, or let the group have a node once")

// reservedMilliCPU is 6 % of the first core, 1 % of the second, 0.5 % of the next two and
// 0.25 % of all others.
func reservedMilliCPU(cpus int) int64 {
	tenths := 0
	for core := 1; core <= cpus; core++ {
		switch {
		case core == 1:
			tenths += 600
		case core == 2:
			tenths += 100
		case core <= 4:
			tenths += 50
		default:
			tenths += 25
		}
	}
	return int64((tenths + 9) / 10)
}
