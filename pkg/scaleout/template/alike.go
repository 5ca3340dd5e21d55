package template

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// alike is a fast path: it reports whether two nodes offer the same, device by device in the same order, like most
// nodes of a group. If it is false, they may still offer the same.
func alike(a, b []devices.Pool) bool {
	return slices.EqualFunc(a, b, func(a, b devices.Pool) bool {
		return slices.EqualFunc(a.Slices, b.Slices, func(a, b *resourceapi.ResourceSlice) bool {
			return slices.EqualFunc(a.Spec.Devices, b.Spec.Devices, devicesAlike) &&
				slices.EqualFunc(a.Spec.SharedCounters, b.Spec.SharedCounters, func(a, b resourceapi.CounterSet) bool {
					return a.Name == b.Name && maps.EqualFunc(a.Counters, b.Counters, countersAlike)
				})
		})
	})
}

func devicesAlike(a, b resourceapi.Device) bool {
	return a.Name == b.Name && !isWithdrawn(a) && !isWithdrawn(b) &&
		ptr.Equal(a.AllowMultipleAllocations, b.AllowMultipleAllocations) &&
		attributesAlike(a.Attributes, b.Attributes) &&
		maps.EqualFunc(a.Capacity, b.Capacity, capacitiesAlike) &&
		slices.EqualFunc(a.ConsumesCounters, b.ConsumesCounters, func(a, b resourceapi.DeviceCounterConsumption) bool {
			return a.CounterSet == b.CounterSet && maps.EqualFunc(a.Counters, b.Counters, countersAlike)
		})
}

func attributesAlike(a, b map[resourceapi.QualifiedName]resourceapi.DeviceAttribute) bool {
	if len(a) != len(b) {
		return false
	}
	for name, value := range a {
		other, has := b[name]
		if !has || !slices.Contains(unlike, name) && !valuesAlike(value, other) {
			return false
		}
	}
	return true
}

func valuesAlike(a, b resourceapi.DeviceAttribute) bool {
	return ptr.Equal(a.StringValue, b.StringValue) && ptr.Equal(a.IntValue, b.IntValue) &&
		ptr.Equal(a.BoolValue, b.BoolValue) && ptr.Equal(a.VersionValue, b.VersionValue) &&
		slices.Equal(a.StringValues, b.StringValues) && slices.Equal(a.IntValues, b.IntValues) &&
		slices.Equal(a.BoolValues, b.BoolValues) && slices.Equal(a.VersionValues, b.VersionValues)
}

func capacitiesAlike(a, b resourceapi.DeviceCapacity) bool {
	if a.RequestPolicy != nil || b.RequestPolicy != nil {
		return apiequality.Semantic.DeepEqual(a, b)
	}
	return a.Value.Cmp(b.Value) == 0
}

func countersAlike(a, b resourceapi.Counter) bool { return a.Value.Cmp(b.Value) == 0 }
