package template

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// ofEveryNode are invented in every template: no two nodes share them.
var ofEveryNode = []resourceapi.QualifiedName{gpu.AttributeParentUUID, gpu.AttributeUUID}

// invented are ofEveryNode and the attributes that are unknown.
func (h hardware) invented() []resourceapi.QualifiedName {
	// It depends on how the driver is installed, not on the machine.
	names := append(slices.Clone(ofEveryNode), gpu.AttributeAddressingMode)
	unknown := func(name resourceapi.QualifiedName, is func(gpu.GPU) bool) {
		if slices.ContainsFunc(h.gpus.GPUs, is) {
			names = append(names, name)
		}
	}
	unknown(gpu.AttributeBrand, func(g gpu.GPU) bool { return g.Brand == "" })
	unknown(gpu.AttributeArchitecture, func(g gpu.GPU) bool { return g.Architecture == "" })
	unknown(gpu.AttributeComputeCapability, func(g gpu.GPU) bool { return g.ComputeCapability == "" })
	unknown(gpu.AttributeDriverVersion, func(gpu.GPU) bool { return h.gpus.DriverVersion == "" })
	unknown(gpu.AttributeCUDAVersion, func(gpu.GPU) bool { return h.gpus.CUDAVersion == "" })
	unknown(gpu.AttributeECCEnabled, func(g gpu.GPU) bool { return g.ECCEnabled == nil })
	unknown(gpu.AttributeNVLinkGroup, func(g gpu.GPU) bool { return g.NVLinkGroup == nil && h.linksUnknown })
	unknown(deviceattribute.StandardDeviceAttributePCIBusID, func(g gpu.GPU) bool { return g.PCIBusID == "" })
	unknown(deviceattribute.StandardDeviceAttributePCIeRoot, func(g gpu.GPU) bool { return g.PCIeRoot == "" })
	unknown(deviceattribute.StandardDeviceAttributeNUMANode, func(g gpu.GPU) bool { return g.NUMANode == nil })
	slices.Sort(names)
	return names
}
