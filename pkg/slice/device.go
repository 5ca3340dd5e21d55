package slice

import (
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

// device describes a shape of the GPU whose attributes are common.
func device(common attributes, shape gpu.Shape) resourceapi.Device {
	attrs, capacity := maps.Clone(common), capacities{}
	attrs.text(gpu.AttributeType, shape.Type())
	shape.Describe(description{attrs, capacity})
	described := resourceapi.Device{Name: shape.Name(), Attributes: attrs, Capacity: capacity}
	if shape.Form().Shares > 0 {
		described.AllowMultipleAllocations = ptr.To(true)
	}
	return described
}

// description collects a shape's description as values of the API.
type description struct {
	attributes attributes
	capacities capacities
}

// Text implements gpu.Description.
func (d description) Text(name, value string) {
	d.attributes.text(resourceapi.QualifiedName(name), value)
}

// Number implements gpu.Description.
func (d description) Number(name string, value *int) {
	d.attributes.number(resourceapi.QualifiedName(name), value)
}

// Truth implements gpu.Description.
func (d description) Truth(name string, value *bool) {
	if value != nil {
		d.attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{BoolValue: value}
	}
}

// Bytes implements gpu.Description.
func (d description) Bytes(name string, n uint64) { d.capacity(name, n, resource.BinarySI) }

// Pieces implements gpu.Description.
func (d description) Pieces(name string, n int) { d.capacity(name, uint64(n), resource.DecimalSI) }

func (d description) capacity(name string, n uint64, format resource.Format) {
	d.capacities[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{Value: *resource.NewQuantity(int64(n), format)}
}

// Divisible implements gpu.Description.
func (d description) Divisible(name string, of gpu.Divisible) {
	format := resource.DecimalSI
	if of.Bytes {
		format = resource.BinarySI
	}
	quantity := func(n uint64) *resource.Quantity { return resource.NewQuantity(int64(n), format) }
	d.capacities[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{
		Value: *quantity(of.Total),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    quantity(of.Default),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(of.Step), Max: quantity(of.Total), Step: quantity(of.Step)},
		},
	}
}

// common are the attributes of all shapes of a GPU.
func common(node gpu.Node, g gpu.GPU) attributes {
	attrs := attributes{}
	attrs.text(gpu.AttributeProductName, g.ProductName)
	attrs.text(gpu.AttributeBrand, g.Brand)
	attrs.text(gpu.AttributeArchitecture, g.Architecture)
	attrs.text(gpu.AttributeAddressingMode, g.AddressingMode)
	attrs.text(deviceattribute.StandardDeviceAttributePCIBusID, g.PCIBusID)
	attrs.text(deviceattribute.StandardDeviceAttributePCIeRoot, g.PCIeRoot)
	attrs.number(deviceattribute.StandardDeviceAttributeNUMANode, g.NUMANode)
	for name, version := range map[resourceapi.QualifiedName]string{
		gpu.AttributeComputeCapability: g.ComputeCapability,
		gpu.AttributeDriverVersion:     node.DriverVersion,
		gpu.AttributeCUDAVersion:       node.CUDAVersion,
	} {
		attrs.version(name, version)
	}
	return attrs
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

func (a attributes) number(name resourceapi.QualifiedName, value *int) {
	if value != nil {
		a[name] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(*value))}
	}
}

// version writes NVIDIA's versions as the strict semantic versions that the
// API demands: "580.95.05" becomes "580.95.5", "9.0" becomes "9.0.0".
// It leaves out what cannot become one.
func (a attributes) version(name resourceapi.QualifiedName, value string) {
	parsed, err := semver.ParseTolerant(value)
	if err != nil || len(parsed.String()) > maxStringLength {
		return
	}
	a[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(parsed.String())}
}
