// Package devices reads ResourceSlices and allocations: the newest generation of each pool, what is
// taken and left of each device, and which fields a selector reads. It never chooses a device, and it
// publishes nothing: that is pkg/slice.
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

// Compare orders devices by their pools and names.
func (d ID) Compare(other ID) int {
	return cmp.Or(d.Pool.Compare(other.Pool), cmp.Compare(d.Name, other.Name))
}

// Device is one of a pool.
type Device struct {
	*resourceapi.Device
	ID ID
	// Own has the identities of its slice, if that is compact.
	Own Own
}

// Shared reports whether several claims may hold the device at once.
func (d *Device) Shared() bool { return ptr.Deref(d.AllowMultipleAllocations, false) }

// AttributeAt returns an attribute; nil: the device does not have it.
func (d *Device) AttributeAt(f Field) *resourceapi.DeviceAttribute {
	attribute, ok := Lookup(d.Attributes, d.ID.Pool.Driver, f.Domain, f.Name)
	if !ok || f.Section != SectionAttributes {
		return nil
	}
	attribute = d.Own.Attribute(resourceapi.QualifiedName(f.Name), attribute)
	return &attribute
}

// CapacityAt returns a capacity; nil: the device does not have it.
func (d *Device) CapacityAt(f Field) *resourceapi.DeviceCapacity {
	capacity, ok := Lookup(d.Capacity, d.ID.Pool.Driver, f.Domain, f.Name)
	if !ok || f.Section != SectionCapacity {
		return nil
	}
	return &capacity
}

// Lacks reports whether the device has neither an attribute nor a capacity at the field.
func (d *Device) Lacks(f Field) bool {
	return f.Name != "" && d.AttributeAt(f) == nil && d.CapacityAt(f) == nil
}

// Lookup finds an attribute or capacity by its name and domain. A driver may leave out its own domain.
func Lookup[V any](of map[resourceapi.QualifiedName]V, driver, domain, name string) (V, bool) {
	if domain == driver {
		if value, ok := of[resourceapi.QualifiedName(name)]; ok {
			return value, true
		}
	}
	value, ok := of[resourceapi.QualifiedName(domain+"/"+name)]
	return value, ok
}

// Input returns the device as selectors see it.
func (d *Device) Input() dracel.Device {
	return dracel.Device{
		Driver: d.ID.Pool.Driver, AllowMultipleAllocations: d.AllowMultipleAllocations,
		Attributes: d.Own.Attributes(d.Attributes), Capacity: d.Capacity,
	}
}
