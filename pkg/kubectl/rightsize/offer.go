package rightsize

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Shape is a kind of device that a node offers to one claim alone. A share of a device has no memory
// and no compute of its own to compare with.
type Shape struct {
	Product string `json:"product,omitempty"`
	// Profile is that of a MIG partition, and empty for an entire GPU.
	Profile     string `json:"profile,omitempty"`
	MemoryBytes int64  `json:"memoryBytes"`
	// Compute is its multiprocessors; 0 where they are not published.
	Compute int64 `json:"multiprocessors,omitempty"`
}

// Name is what people call it.
func (s Shape) Name() string {
	switch {
	case s == Shape{}:
		return "unknown"
	case s.Profile == "":
		return "whole GPU"
	}
	return s.Profile
}

// Offer is what nodes publish.
type Offer struct {
	// shapes are distinct, the smallest first.
	shapes  []Shape
	devices map[publishedDevice]Shape
}

type publishedDevice struct{ node, device string }

// OfferOf reads the slices of one driver. They may be compact.
func OfferOf(published []*resourceapi.ResourceSlice) Offer {
	o := Offer{devices: map[publishedDevice]Shape{}}
	for _, slice := range published {
		if slice.Spec.NodeName == nil {
			continue
		}
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			kind := text(device, gpu.AttributeType)
			if kind != (gpu.Whole{}).Type() && kind != (gpu.Partition{}).Type() {
				continue
			}
			s := Shape{
				Product: text(device, gpu.AttributeProductName), Profile: text(device, gpu.AttributeProfile),
				MemoryBytes: amount(device, gpu.CapacityMemory), Compute: amount(device, gpu.CapacityMultiprocessors),
			}
			o.devices[publishedDevice{*slice.Spec.NodeName, device.Name}] = s
			if !slices.Contains(o.shapes, s) {
				o.shapes = append(o.shapes, s)
			}
		}
	}
	slices.SortFunc(o.shapes, func(a, b Shape) int {
		return cmp.Or(cmp.Compare(a.MemoryBytes, b.MemoryBytes), cmp.Compare(a.Compute, b.Compute), cmp.Compare(a.Product, b.Product), cmp.Compare(a.Profile, b.Profile))
	})
	return o
}

// Empty tells that there are no shapes.
func (o Offer) Empty() bool { return len(o.shapes) == 0 }

// shapeOf is empty where no node offers the device now.
func (o Offer) shapeOf(u Use) Shape { return o.devices[publishedDevice{u.Node, u.Device}] }

func text(d *resourceapi.Device, name string) string {
	if value := d.Attributes[resourceapi.QualifiedName(name)].StringValue; value != nil {
		return *value
	}
	return ""
}

func amount(d *resourceapi.Device, name string) int64 {
	quantity := d.Capacity[resourceapi.QualifiedName(name)].Value
	return quantity.Value()
}
