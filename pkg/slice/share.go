package slice

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/pkg/gpu"
)

const (
	// memoryStep is what requests for memory are rounded up to, and the least.
	memoryStep = 1 << 20
	// allCores is all of a device's multiprocessors, in percent.
	allCores = 100
)

// describeShare adds what a device has for all of its shares, and what a claim
// takes of it that does not say how much.
func describeShare(share gpu.Share, attrs attributes, capacity capacities) {
	count := int64(share.Sharing.Count())
	switch sharing := share.Sharing.(type) {
	case gpu.TimeSlicing:
		attrs.text(attributeInterval, string(sharing.Interval))
		capacity.divisible(CapacityShares, count, 1, 1, resource.DecimalSI)
	case gpu.MPS:
		capacity.divisible(CapacityCores, allCores, 1, allCores/count, resource.DecimalSI)
	}
	// Whole steps, so that as many default shares fit as there are to be.
	if steps := int64(share.MemoryBytes() / memoryStep); steps >= count {
		capacity.divisible(CapacityMemory, steps*memoryStep, memoryStep, steps/count*memoryStep, resource.BinarySI)
	}
}

// divisible is a capacity of which each claim takes a number of steps.
func (c capacities) divisible(name resourceapi.QualifiedName, total, step, byDefault int64, format resource.Format) {
	quantity := func(n int64) *resource.Quantity { return resource.NewQuantity(n, format) }
	c[name] = resourceapi.DeviceCapacity{
		Value: *quantity(total),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    quantity(byDefault),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(step), Max: quantity(total), Step: quantity(step)},
		},
	}
}
