package slice

import (
	"strings"

	"github.com/blang/semver/v4"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Names of attributes and capacities in the driver's domain. Those that
// NVIDIA's driver also publishes have its names and meaning, so that CEL
// written for it selects the same GPUs here.
const (
	attrType              = "type"
	attrUUID              = "uuid"
	attrProductName       = "productName"
	attrBrand             = "brand"
	attrArchitecture      = "architecture"
	attrComputeCapability = "cudaComputeCapability"
	attrDriverVersion     = "driverVersion"
	attrCUDAVersion       = "cudaDriverVersion"
	attrAddressingMode    = "addressingMode"
	attrIndex             = "index"
	attrMinor             = "minor"
	attrECCEnabled        = "eccEnabled"
	attrNVLinkGroup       = "nvlinkGroup"

	capacityMemory = "memory"
)

// maxStringLength is the API server's limit of a string attribute in bytes
// (DeviceAttributeMaxValueLength in k8s.io/api/resource/v1).
const maxStringLength = resourceapi.DeviceAttributeMaxValueLength

type attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute

func device(node gpu.Node, shape gpu.Shape) resourceapi.Device {
	g := shape.Physical()
	attrs := attributes{}
	attrs.text(attrType, shape.Type())
	attrs.text(attrUUID, g.UUID)
	attrs.text(attrProductName, g.ProductName)
	attrs.text(attrBrand, g.Brand)
	attrs.text(attrArchitecture, g.Architecture)
	attrs.text(attrAddressingMode, g.AddressingMode)
	attrs.number(attrIndex, g.Index)
	attrs.number(attrMinor, g.Minor)
	attrs.truth(attrECCEnabled, g.ECCEnabled)
	attrs.optionalNumber(attrNVLinkGroup, g.NVLinkGroup)
	attrs.text(deviceattribute.StandardDeviceAttributePCIBusID, g.PCIBusID)
	attrs.text(deviceattribute.StandardDeviceAttributePCIeRoot, g.PCIeRoot)
	attrs.optionalNumber(deviceattribute.StandardDeviceAttributeNUMANode, g.NUMANode)
	for name, version := range map[resourceapi.QualifiedName]string{
		attrComputeCapability: g.ComputeCapability,
		attrDriverVersion:     node.DriverVersion,
		attrCUDAVersion:       node.CUDAVersion,
	} {
		attrs.version(name, version)
	}
	return resourceapi.Device{
		Name:       shape.Name(),
		Attributes: attrs,
		Capacity:   capacities(g),
	}
}

// capacities leaves out a memory size that NVML does not know: a claim that
// asks for memory must not match by accident.
func capacities(g gpu.GPU) map[resourceapi.QualifiedName]resourceapi.DeviceCapacity {
	if g.MemoryBytes == 0 {
		return nil
	}
	return map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
		capacityMemory: {Value: *resource.NewQuantity(int64(g.MemoryBytes), resource.BinarySI)},
	}
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
