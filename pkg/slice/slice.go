// Package slice turns the shapes of a node's GPUs into the ResourceSlices
// that announce them. It is pure: the same facts give the same bytes, whether
// they come from NVML or from a catalogue. It never talks to the API server.
package slice

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// DefaultDriver is the driver's name in slices, claims and device classes, and the domain
// of the attributes. It is that of NVIDIA's driver, so that manifests work unchanged.
const DefaultDriver = "gpu.nvidia.com"

// Pool is the content of a node's pool. The scheduler tries devices in their order, which is
// that of the shapes. The first slice has those that exist: entire GPUs and an administrator's
// partitions. Partitions that are made for claims follow, one slice per GPU, so that a change
// of one GPU touches one slice. The counters that keep the shapes of a GPU apart come last,
// because a slice with counters may have no devices (KEP-4815). A node whose GPUs are only
// offered whole needs no counters. A node without devices still has one empty slice, so that
// the pool is complete.
func Pool(node gpu.Node, shapes []gpu.Shape, taints Taints) resourceslice.Pool {
	var existing []resourceapi.Device
	var partitions []resourceslice.Slice
	var sets []resourceapi.CounterSet
	for _, offered := range group(shapes) {
		g := describe(node, offered, taints)
		existing = append(existing, g.existing...)
		partitions = append(partitions, devices(g.partitions)...)
		if len(g.counters.Counters) > 0 {
			sets = append(sets, g.counters)
		}
	}
	inOrder(existing, shapes)
	return poolOf(slices.Concat(devices(existing), partitions, counterSlices(sets)))
}

// poolOf is a pool of the slices, or of one without devices.
func poolOf(all []resourceslice.Slice) resourceslice.Pool {
	if len(all) == 0 {
		all = []resourceslice.Slice{{Devices: []resourceapi.Device{}}}
	}
	return resourceslice.Pool{Slices: all}
}

// Whole is the device of an entire GPU for one claim at a time, without counters.
func Whole(node gpu.Node, g gpu.GPU) resourceapi.Device {
	return device(common(node, g), gpu.Whole{GPU: g})
}

// WithoutCounters is the part of a pool that can be published if nothing keeps shapes of one
// GPU apart: whole GPUs, and devices that take no counter, such as an administrator's
// partitions, for one claim each.
func WithoutCounters(pool resourceslice.Pool) resourceslice.Pool {
	var kept []resourceapi.Device
	for _, slice := range pool.Slices {
		for _, device := range slice.Devices {
			shared := device.AllowMultipleAllocations != nil
			if shared || !isWhole(device) && len(device.ConsumesCounters) > 0 {
				continue
			}
			device.ConsumesCounters = nil
			kept = append(kept, device)
		}
	}
	return poolOf(devices(kept))
}

func isWhole(device resourceapi.Device) bool {
	typ := device.Attributes[gpu.AttributeType].StringValue
	return typ != nil && *typ == gpu.Whole{}.Type()
}

// WithoutShares is the part of a pool that can be published if one claim would get all of a
// device that is meant for several.
func WithoutShares(pool resourceslice.Pool) resourceslice.Pool {
	return edited(pool, func(all []resourceapi.Device) []resourceapi.Device {
		return slices.DeleteFunc(all, func(d resourceapi.Device) bool { return d.AllowMultipleAllocations != nil })
	})
}

// WithoutTaints is a pool for an API server that does not know taints of devices.
func WithoutTaints(pool resourceslice.Pool) resourceslice.Pool {
	return edited(pool, func(all []resourceapi.Device) []resourceapi.Device {
		for i := range all {
			all[i].Taints = nil
		}
		return all
	})
}

// edited has copies of the slices with other devices. A slice that loses all of
// them goes, unless it is the only one.
func edited(pool resourceslice.Pool, edit func([]resourceapi.Device) []resourceapi.Device) resourceslice.Pool {
	var kept []resourceslice.Slice
	for _, s := range pool.Slices {
		had := len(s.Devices) > 0
		s.Devices = edit(slices.Clone(s.Devices))
		if !had || len(s.Devices) > 0 {
			kept = append(kept, s)
		}
	}
	return poolOf(kept)
}

// described are the devices and counters of one GPU.
type described struct {
	existing, partitions []resourceapi.Device
	counters             resourceapi.CounterSet
}

func describe(node gpu.Node, offered []gpu.Shape, taints Taints) described {
	g := offered[0].Physical()
	common := common(node, g)
	counters := gpu.Counters(offered)
	result := described{counters: counterSet(g, counters)}
	for _, shape := range offered {
		device := device(common, shape)
		device.ConsumesCounters = consumption(result.counters.Name, counters, shape)
		device.Taints = taints.of(device.Name)
		if gpu.Exists(shape) {
			result.existing = append(result.existing, device)
		} else {
			result.partitions = append(result.partitions, device)
		}
	}
	return result
}

// inOrder sorts the devices of all GPUs in the order of their shapes.
func inOrder(devices []resourceapi.Device, shapes []gpu.Shape) {
	order := make(map[string]int, len(shapes))
	for i, shape := range shapes {
		order[shape.Name()] = i
	}
	slices.SortStableFunc(devices, func(a, b resourceapi.Device) int { return order[a.Name] - order[b.Name] })
}

// group groups shapes by GPU, in the order of the partitions that can be made of them. GPUs
// without any come last.
func group(shapes []gpu.Shape) [][]gpu.Shape {
	var byGPU [][]gpu.Shape
	index := map[int]int{}
	made, existing := split(shapes)
	for _, shape := range slices.Concat(made, existing) {
		minor := shape.Physical().Minor
		i, known := index[minor]
		if !known {
			i = len(byGPU)
			index[minor] = i
			byGPU = append(byGPU, nil)
		}
		byGPU[i] = append(byGPU[i], shape)
	}
	return byGPU
}

// split separates partitions that are made for claims from the shapes that exist.
func split(shapes []gpu.Shape) (made, existing []gpu.Shape) {
	for _, shape := range shapes {
		if gpu.Exists(shape) {
			existing = append(existing, shape)
		} else {
			made = append(made, shape)
		}
	}
	return made, existing
}

// devices splits devices into slices. The API server's limit is lower if any of
// them consumes counters or is tainted.
func devices(all []resourceapi.Device) []resourceslice.Slice {
	limit := resourceapi.ResourceSliceMaxDevices
	for _, device := range all {
		if len(device.ConsumesCounters) > 0 || len(device.Taints) > 0 {
			limit = resourceapi.ResourceSliceMaxDevicesWithAdvancedFeatures
		}
	}
	var split []resourceslice.Slice
	for chunk := range slices.Chunk(all, limit) {
		split = append(split, resourceslice.Slice{Devices: chunk})
	}
	return split
}

func counterSlices(sets []resourceapi.CounterSet) []resourceslice.Slice {
	var split []resourceslice.Slice
	for chunk := range slices.Chunk(sets, resourceapi.ResourceSliceMaxCounterSets) {
		split = append(split, resourceslice.Slice{SharedCounters: chunk})
	}
	return split
}
