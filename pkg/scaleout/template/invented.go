package template

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// ofEveryNode are made up in every template: no two nodes share them.
var ofEveryNode = []resourceapi.QualifiedName{slice.AttributeParentUUID, slice.AttributeUUID}

// invented adds what is left out because nobody knows it.
func (h hardware) invented() []resourceapi.QualifiedName {
	// It depends on how the driver is installed, not on the machine.
	names := append(slices.Clone(ofEveryNode), slice.AttributeAddressingMode)
	unknown := func(name resourceapi.QualifiedName, is func(gpu.GPU) bool) {
		if slices.ContainsFunc(h.gpus.GPUs, is) {
			names = append(names, name)
		}
	}
	unknown(slice.AttributeBrand, func(g gpu.GPU) bool { return g.Brand == "" })
	unknown(slice.AttributeArchitecture, func(g gpu.GPU) bool { return g.Architecture == "" })
	unknown(slice.AttributeComputeCapability, func(g gpu.GPU) bool { return g.ComputeCapability == "" })
	unknown(slice.AttributeDriverVersion, func(gpu.GPU) bool { return h.gpus.DriverVersion == "" })
	unknown(slice.AttributeCUDAVersion, func(gpu.GPU) bool { return h.gpus.CUDAVersion == "" })
	unknown(slice.AttributeECCEnabled, func(g gpu.GPU) bool { return g.ECCEnabled == nil })
	unknown(slice.AttributeNVLinkGroup, func(g gpu.GPU) bool { return g.NVLinkGroup == nil && h.linksUnknown })
	unknown(deviceattribute.StandardDeviceAttributePCIBusID, func(g gpu.GPU) bool { return g.PCIBusID == "" })
	unknown(deviceattribute.StandardDeviceAttributePCIeRoot, func(g gpu.GPU) bool { return g.PCIeRoot == "" })
	unknown(deviceattribute.StandardDeviceAttributeNUMANode, func(g gpu.GPU) bool { return g.NUMANode == nil })
	slices.Sort(names)
	return names
}
