package template

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Attributes of our driver that have a meaning here; pkg/slice publishes them.
const (
	attrType           = "type"
	attrUUID           = "uuid"
	attrParentUUID     = "parentUUID"
	attrProductName    = "productName"
	attrBrand          = "brand"
	attrArchitecture   = "architecture"
	attrCapability     = "cudaComputeCapability"
	attrDriverVersion  = "driverVersion"
	attrCUDAVersion    = "cudaDriverVersion"
	attrAddressingMode = "addressingMode"
	attrIndex          = "index"
	attrMinor          = "minor"
	attrECCEnabled     = "eccEnabled"
	attrNVLinkGroup    = "nvlinkGroup"
	attrProfile        = "profile"
	attrPCIBusID       = deviceattribute.StandardDeviceAttributePCIBusID
	attrPCIeRoot       = deviceattribute.StandardDeviceAttributePCIeRoot
	attrNUMANode       = deviceattribute.StandardDeviceAttributeNUMANode
)

const capacityMemory = "memory"

// ofEveryNode are made up in every template: no two nodes share them.
var ofEveryNode = []resourceapi.QualifiedName{attrParentUUID, attrUUID}

// invented adds what is left out because nobody knows it.
func (h hardware) invented() []resourceapi.QualifiedName {
	// It depends on how the driver is installed, not on the machine.
	names := append(slices.Clone(ofEveryNode), attrAddressingMode)
	unknown := func(name resourceapi.QualifiedName, is func(gpu.GPU) bool) {
		if slices.ContainsFunc(h.gpus.GPUs, is) {
			names = append(names, name)
		}
	}
	unknown(attrBrand, func(g gpu.GPU) bool { return g.Brand == "" })
	unknown(attrArchitecture, func(g gpu.GPU) bool { return g.Architecture == "" })
	unknown(attrCapability, func(g gpu.GPU) bool { return g.ComputeCapability == "" })
	unknown(attrDriverVersion, func(gpu.GPU) bool { return h.gpus.DriverVersion == "" })
	unknown(attrCUDAVersion, func(gpu.GPU) bool { return h.gpus.CUDAVersion == "" })
	unknown(attrECCEnabled, func(g gpu.GPU) bool { return g.ECCEnabled == nil })
	unknown(attrNVLinkGroup, func(g gpu.GPU) bool { return g.NVLinkGroup == nil && h.linksUnknown })
	unknown(attrPCIBusID, func(g gpu.GPU) bool { return g.PCIBusID == "" })
	unknown(attrPCIeRoot, func(g gpu.GPU) bool { return g.PCIeRoot == "" })
	unknown(attrNUMANode, func(g gpu.GPU) bool { return g.NUMANode == nil })
	slices.Sort(names)
	return names
}
