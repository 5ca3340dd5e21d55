// Package devices reads what drivers publish of devices and what claims have of them: the
// pools in their newest generation, what is taken and what is left of each device, and what a
// selector looks at. It never chooses a device, and it publishes nothing: that is pkg/slice.
package devices

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"
)

// ID names a device.
type ID struct {
	Pool PoolID
	Name string
}

// Of is the device of an allocation's result.
func Of(result *resourceapi.DeviceRequestAllocationResult) ID {
	return ID{Pool: PoolID{Driver: result.Driver, Name: result.Pool}, Name: result.Device}
}

// Compare orders devices by their pools and names.
func (d ID) Compare(other ID) int {
	return cmp.Or(d.Pool.Compare(other.Pool), cmp.Compare(d.Name, other.Name))
}

// Device is one of a pool.
type Device struct {
	*resourceapi.Device
	ID ID
	// Own has what of Attributes was put aside, if its slice is compact.
	Own Own
}

// Shared tells that several claims may have the device at once.
func (d *Device) Shared() bool { return ptr.Deref(d.AllowMultipleAllocations, false) }

// AttributeAt is nil where the device has no such attribute.
func (d *Device) AttributeAt(f Field) *resourceapi.DeviceAttribute {
	attribute, ok := Lookup(d.Attributes, d.ID.Pool.Driver, f.Domain, f.Name)
	if !ok || f.Section != SectionAttributes {
		return nil
	}
	attribute = d.Own.Attribute(resourceapi.QualifiedName(f.Name), attribute)
	return &attribute
}

// CapacityAt is nil where the device has no such capacity.
func (d *Device) CapacityAt(f Field) *resourceapi.DeviceCapacity {
	capacity, ok := Lookup(d.Capacity, d.ID.Pool.Driver, f.Domain, f.Name)
	if !ok || f.Section != SectionCapacity {
		return nil
	}
	return &capacity
}

// Lacks tells that the device has nothing in the field.
func (d *Device) Lacks(f Field) bool {
	return f.Name != "" && d.AttributeAt(f) == nil && d.CapacityAt(f) == nil
}

// Lookup finds what a device of the driver has by a name in a domain: in its own, a driver may
// leave the domain out.
func Lookup[V any](of map[resourceapi.QualifiedName]V, driver, domain, name string) (V, bool) {
	if domain == driver {
		if value, ok := of[resourceapi.QualifiedName(name)]; ok {
			return value, true
		}
	}
	value, ok := of[resourceapi.QualifiedName(domain+"/"+name)]
	return value, ok
}

// Input is the device as selectors see it.
func (d *Device) Input() dracel.Device {
	return dracel.Device{
		Driver: d.ID.Pool.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations,
		Attributes: d.Own.Attributes(d.Attributes), Capacity: d.Capacity,
	}
}
