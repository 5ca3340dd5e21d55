package slice

import (
	"fmt"
	"maps"
	"strings"

	"github.com/blang/semver/v4"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// maxStringLength is the API server's limit of a string attribute in bytes
// (DeviceAttributeMaxValueLength in k8s.io/api/resource/v1).
const maxStringLength = resourceapi.DeviceAttributeMaxValueLength

type (
	attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	capacities map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
)

// device describes a shape of the GPU of which common are the attributes.
func device(common attributes, shape gpu.Shape) resourceapi.Device {
	attrs := maps.Clone(common)
	attrs.text(AttributeType, shape.Type())
	capacity := capacities{}
	described := resourceapi.Device{Name: shape.Name(), Attributes: attrs, Capacity: capacity}
	switch shape := shape.(type) {
	case gpu.Share:
		identify(shape.Of, attrs)
		describeShare(shape, attrs, capacity)
		described.AllowMultipleAllocations = ptr.To(true)
	default:
		identify(shape, attrs)
		describeExclusive(shape, capacity)
	}
	return described
}

// common is what every shape of a GPU says of the GPU.
func common(node gpu.Node, g gpu.GPU) attributes {
	attrs := attributes{}
	attrs.text(AttributeProductName, g.ProductName)
	attrs.text(AttributeBrand, g.Brand)
	attrs.text(AttributeArchitecture, g.Architecture)
	attrs.text(AttributeAddressingMode, g.AddressingMode)
	attrs.text(deviceattribute.StandardDeviceAttributePCIBusID, g.PCIBusID)
	attrs.text(deviceattribute.StandardDeviceAttributePCIeRoot, g.PCIeRoot)
	attrs.optionalNumber(deviceattribute.StandardDeviceAttributeNUMANode, g.NUMANode)
	for name, version := range map[resourceapi.QualifiedName]string{
		AttributeComputeCapability: g.ComputeCapability,
		AttributeDriverVersion:     node.DriverVersion,
		AttributeCUDAVersion:       node.CUDAVersion,
	} {
		attrs.version(name, version)
	}
	return attrs
}

// identify adds what tells a GPU or partition from the others.
func identify(shape gpu.Shape, attrs attributes) {
	switch shape := shape.(type) {
	case gpu.Whole:
		g := shape.GPU
		attrs.text(AttributeUUID, g.UUID)
		attrs.number(AttributeIndex, g.Index)
		attrs.number(AttributeMinor, g.Minor)
		attrs.truth(AttributeECCEnabled, g.ECCEnabled)
		attrs.optionalNumber(AttributeNVLinkGroup, g.NVLinkGroup)
	case gpu.Partition:
		attrs.text(AttributeParentUUID, shape.GPU.UUID)
		attrs.text(AttributeProfile, shape.Profile.Name)
	case gpu.Static:
		attrs.text(AttributeParentUUID, shape.GPU.UUID)
		attrs.text(AttributeProfile, shape.Profile.Name)
		attrs.text(AttributeUUID, shape.Device.UUID)
	}
}

// describeExclusive adds what a claim gets that has the device to itself.
func describeExclusive(shape gpu.Shape, capacity capacities) {
	switch shape := shape.(type) {
	case gpu.Whole:
		describeWhole(shape.GPU, capacity)
	case gpu.Partition:
		describePartition(shape.Profile, capacity)
	case gpu.Static:
		describePartition(shape.Profile, capacity)
		for i := range shape.Instance.Size {
			capacity.pieces(resourceapi.QualifiedName(fmt.Sprint(capacityMemorySlice, shape.Instance.Start+i)), 1)
		}
	}
}

// describeWhole has the engines of the GPU's largest profile where it can be
// partitioned at once, as in NVIDIA's driver; on boards where that takes a reset,
// the GPU has more than the largest profile.
func describeWhole(g gpu.GPU, capacity capacities) {
	// A claim that asks for memory must not match by accident.
	if g.MemoryBytes != 0 {
		capacity.bytes(CapacityMemory, g.MemoryBytes)
	}
	if g.MIGSwitchable && len(g.Profiles) > 0 {
		capacity.engines(g.Room().Engines)
	}
}

// describePartition says, too, that a partition has none of an engine, for
// selectors that compare with it.
func describePartition(p gpu.Profile, capacity capacities) {
	capacity.bytes(CapacityMemory, p.MemoryBytes)
	capacity.engines(p.Engines)
}

func (c capacities) bytes(name resourceapi.QualifiedName, n uint64) {
	c[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.BinarySI)}
}

func (c capacities) pieces(name resourceapi.QualifiedName, n int) {
	c[name] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}
}

func (c capacities) engines(e gpu.Engines) {
	c.pieces(capacityMultiprocessors, e.Multiprocessors)
	c.pieces(capacityCopyEngines, e.CopyEngines)
	c.pieces(capacityDecoders, e.Decoders)
	c.pieces(capacityEncoders, e.Encoders)
	c.pieces(capacityJPEGEngines, e.JPEGEngines)
	c.pieces(capacityOFAEngines, e.OFAEngines)
}

// text leaves out what is unknown, and cuts what the API server would refuse.
func (a attributes) text(name resourceapi.QualifiedName, value string) {
	if value == "" {
		return
	}
	if len(value) > maxStringLength {
		value = strings.ToValidUTF8(value[:maxStringLength], "")
	}
	a[name] = resourceapi.DeviceAttribute{StringValue: &value}
}

func (a attributes) number(name resourceapi.QualifiedName, value int) {
	a[name] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(value))}
}

func (a attributes) optionalNumber(name resourceapi.QualifiedName, value *int) {
	if value != nil {
		a.number(name, *value)
	}
}

func (a attributes) truth(name resourceapi.QualifiedName, value *bool) {
	if value != nil {
		a[name] = resourceapi.DeviceAttribute{BoolValue: value}
	}
}

// version writes NVIDIA's versions as the strict semantic versions that the
// API demands: "580.95.05" becomes "580.95.5", "9.0" becomes "9.0.0".
// What cannot become one is left out: the GPU is as good without it.
func (a attributes) version(name resourceapi.QualifiedName, value string) {
	parsed, err := semver.ParseTolerant(value)
	if err != nil || len(parsed.String()) > maxStringLength {
		return
	}
	a[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(parsed.String())}
}
