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

// device describes a shape of the GPU whose attributes are common.
func device(common map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, shape gpu.Shape) resourceapi.Device {
	d := description{maps.Clone(common), map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{}}
	d.Text(gpu.AttributeType, shape.Type())
	shape.Describe(d)
	described := resourceapi.Device{Name: shape.Name(), Attributes: d.attributes, Capacity: d.capacities}
	if shape.Form().Shared() {
		described.AllowMultipleAllocations = ptr.To(true)
	}
	return described
}

// description collects a shape's description as values of the API.
type description struct {
	attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	capacities map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
}

// Text implements gpu.Description. It cuts what the API server would refuse.
func (d description) Text(name, value string) {
	if value == "" {
		return
	}
	if len(value) > maxStringLength {
		value = strings.ToValidUTF8(value[:maxStringLength], "")
	}
	d.attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{StringValue: &value}
}

// Number implements gpu.Description.
func (d description) Number(name string, value *int) {
	if value != nil {
		d.attributes[resourceapi.QualifiedName(name)] = resourceapi.DeviceAttribute{IntValue: ptr.To(int64(*value))}
	}
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
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(of.Min), Max: quantity(of.Total), Step: quantity(of.Step)},
		},
	}
}

// common are the attributes of all shapes of a GPU.
func common(node gpu.Node, g gpu.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	d := description{attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
	d.Text(gpu.AttributeProductName, g.ProductName)
	d.Text(gpu.AttributeBrand, g.Brand)
	d.Text(gpu.AttributeArchitecture, g.Architecture)
	d.Text(gpu.AttributeAddressingMode, g.AddressingMode)
	d.Text(string(deviceattribute.StandardDeviceAttributePCIBusID), g.PCIBusID)
	d.Text(string(deviceattribute.StandardDeviceAttributePCIeRoot), g.PCIeRoot)
	d.Number(string(deviceattribute.StandardDeviceAttributeNUMANode), g.NUMANode)
	d.version(gpu.AttributeComputeCapability, g.ComputeCapability)
	d.version(gpu.AttributeDriverVersion, node.DriverVersion)
	d.version(gpu.AttributeCUDAVersion, node.CUDAVersion)
	return d.attributes
}

// version writes NVIDIA's versions as the strict semantic versions that the
// API demands: "580.95.05" becomes "580.95.5", "9.0" becomes "9.0.0".
// It leaves out what cannot become one.
func (d description) version(name resourceapi.QualifiedName, value string) {
	parsed, err := semver.ParseTolerant(value)
	if err == nil && len(parsed.String()) <= maxStringLength {
		d.attributes[name] = resourceapi.DeviceAttribute{VersionValue: ptr.To(parsed.String())}
	}
}
