package model

import (
	"fmt"

	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// File describes a machine: what an installer would find in it. Fields that a
// machine cannot be simulated without are required; the rest has a default that
// depends on nothing but the file.
type File struct {
	// Name identifies the machine; identities such as UUIDs derive from it.
	Name string `json:"name"`
	// Description says what the file describes and where that was seen.
	Description string `json:"description,omitempty"`
	// DriverVersion is the NVIDIA driver's version, for example "580.95.05".
	DriverVersion string `json:"driverVersion"`
	// CUDADriverVersion is the CUDA version of the driver, "major.minor".
	CUDADriverVersion string `json:"cudaDriverVersion"`
	// NVSwitches join GPUs that have NVLink ports; none on machines without.
	NVSwitches []NVSwitch `json:"nvSwitches,omitempty"`
	// Habits are ways of real machines that are off unless they are described.
	Habits Habits `json:"habits,omitzero"`
	// GPUs in the order in which NVML enumerates them.
	GPUs []GPU `json:"gpus"`
}

// NVSwitch is one NVSwitch chip.
type NVSwitch struct {
	// PCIBusID is the switch's PCI address; empty where the switches of a
	// machine are not PCI devices of the host.
	PCIBusID string `json:"pciBusID,omitempty"`
	// PCIDeviceID is the switch's device ID, for example "22a3"; required with PCIBusID.
	PCIDeviceID catalog.PCIDeviceID `json:"pciDeviceID,omitempty"`
	// LinksPerGPU is how many links of each GPU end in this switch.
	LinksPerGPU int `json:"linksPerGPU"`
}

// GPU is one GPU of a machine.
type GPU struct {
	// Board names the board in pkg/catalog.
	Board string `json:"board"`
	// PCIBusID is the PCI address, for example "0000:53:00.0".
	PCIBusID string `json:"pciBusID"`
	// PCIRoot is the root complex above the GPU, for example "pci0000:44".
	PCIRoot string `json:"pciRoot"`
	// PCIBridges are the addresses of the bridges between root and GPU, from
	// the root down. Empty for a GPU that sits on the root's own bus.
	PCIBridges []string `json:"pciBridges,omitempty"`
	// NUMANode is the GPU's NUMA node; -1 where the machine has none.
	NUMANode int `json:"numaNode"`
	// Minor is the number of the GPU's /dev/nvidia<minor>.
	Minor int `json:"minor"`
	// UUID overrides the identity derived from the machine's name.
	UUID string `json:"uuid,omitempty"`
	// Presence is how the GPU is there when the machine starts: "present", "lost" or
	// "absent", from where Control brings it. Unset: present.
	Presence Presence `json:"presence,omitempty"`
	// MIG is how the GPU is partitioned at the start; nil for MIG disabled.
	MIG *MIGSetup `json:"mig,omitempty"`
}

// ParseFile decodes a machine description strictly and validates it.
func ParseFile(raw []byte) (File, error) {
	var f File
	if err := yaml.UnmarshalStrict(raw, &f); err != nil {
		return File{}, fmt.Errorf("decode the machine description: %w", err)
	}
	if err := f.Validate(); err != nil {
		return File{}, err
	}
	return f, nil
}
