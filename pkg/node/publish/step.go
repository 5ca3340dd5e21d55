package publish

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/slice"
)

// step is what to publish next on the way from the slices seen to what is desired. Where more
// than one slice of a pool changes, the library's controller writes all of them, with a new
// generation, and until the last is there the scheduler uses none. Taints need no generation:
// any mixture of old and new ones is a pool that was or will be offered, so they are changed
// slice by slice, and a sick GPU costs two writes.
func step(seen []*resourceapi.ResourceSlice, desired resourceslice.DriverResources) resourceslice.DriverResources {
	next := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{}}
	for name, pool := range desired.Pools {
		next.Pools[name] = poolStep(ofPool(seen, name), pool)
	}
	return next
}

func poolStep(seen []*resourceapi.ResourceSlice, desired resourceslice.Pool) resourceslice.Pool {
	if !poolMatches(withoutTaints(seen), slice.WithoutTaints(desired)) {
		return desired
	}
	next := desired
	next.Slices = slices.Clone(desired.Slices)
	changed := false
	for i, s := range seen {
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

func withoutTaints(seen []*resourceapi.ResourceSlice) []*resourceapi.ResourceSlice {
	bare := make([]*resourceapi.ResourceSlice, len(seen))
	for i, s := range seen {
		without := *s
		without.Spec.Devices = slices.Clone(s.Spec.Devices)
		for j := range without.Spec.Devices {
			without.Spec.Devices[j].Taints = nil
		}
		bare[i] = &without
	}
	return bare
}
