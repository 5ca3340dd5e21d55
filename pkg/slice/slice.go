// Package slice turns the shapes of a node's GPUs into the ResourceSlices
// that announce them. It is pure: the same facts give the same bytes, whether
// they come from NVML or from a catalogue. It never talks to the API server.
package slice

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Pool is the content of a node's pool. A node that only offers exclusive
// whole GPUs needs no counters, so up to 128 devices share one slice, the API
// server's limit for such devices. A node without devices still has one slice,
// empty, which tells consumers that the pool is complete.
func Pool(node gpu.Node, shapes []gpu.Shape) (resourceslice.Pool, error) {
	devices := make([]resourceapi.Device, 0, len(shapes))
	for _, shape := range shapes {
		devices = append(devices, device(node, shape))
	}
	return resourceslice.Pool{Slices: split(devices, resourceapi.ResourceSliceMaxDevices)}, nil
}

func split(devices []resourceapi.Device, limit int) []resourceslice.Slice {
	var slices []resourceslice.Slice
	for len(devices) > limit {
		slices = append(slices, resourceslice.Slice{Devices: devices[:limit:limit]})
		devices = devices[limit:]
	}
	return append(slices, resourceslice.Slice{Devices: devices})
}
