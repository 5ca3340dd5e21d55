package publish

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/slice"
)

// step returns the next step from the published slices to the desired ones. If more than one slice
// of a pool changes, the library's controller writes all with a new generation, and the scheduler
// uses none until the last is there. Taints need no generation: any mixture of old and new ones is
// a valid pool. So they change slice by slice, and a sick GPU costs two writes.
func step(published []*resourceapi.ResourceSlice, desired resourceslice.DriverResources) resourceslice.DriverResources {
	next := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for name, pool := range desired.Pools {
		next.Pools[name] = poolStep(ofPool(published, name), pool)
	}
	return next
}

func poolStep(published []*resourceapi.ResourceSlice, desired resourceslice.Pool) resourceslice.Pool {
	if !poolMatches(withoutTaints(published), slice.WithoutTaints(desired)) {
		return desired
	}
	next := desired
	next.Slices = slices.Clone(desired.Slices)
	changed := false
	for i, s := range published {
		if resourceslice.DevicesDeepEqual(s.Spec.Devices, desired.Slices[i].Devices) {
			continue
		}
		if changed {
			next.Slices[i].Devices = s.Spec.Devices
		}
		changed = true
	}
	return next
}

func withoutTaints(published []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	bare := make([]*resourceapi.ResourceSlice, len(published))
	for i, s := range published {
		without := *s
		without.Spec.Devices = slices.Clone(s.Spec.Devices)
		for j := range without.Spec.Devices {
			without.Spec.Devices[j].Taints = nil
		}
		bare[i] = &without
	}
	return bare
}
