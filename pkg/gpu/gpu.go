// Package gpu owns the vocabulary of the driver: what a GPU is, and in which
// shapes it can be given to a claim. It holds plain values and pure functions;
// it never talks to hardware, to Kubernetes or to the file system.
package gpu

import (
	"cmp"
	"slices"
)

// Node describes one machine's NVIDIA driver and GPUs.
type Node struct {
	// DriverVersion is the kernel driver's version, such as "580.95.05".
	DriverVersion string
	// CUDAVersion is the newest CUDA version that the driver supports, such as "13.0".
	CUDAVersion string
	// GPUs are ordered by NVML index.
	GPUs []GPU
}

// GPU is one physical GPU as NVML and sysfs describe it. A fact that could not
// be established holds its zero value or nil and is never guessed.
type GPU struct {
	// Index is NVML's enumeration index: it follows PCI order and shifts when
	// a GPU is lost. Minor is the number in /dev/nvidia<Minor>, and names the
	// device because it does not shift.
	Index, Minor int
	// UUID is NVML's "GPU-..." identifier.
	UUID string

	ProductName, Brand, Architecture string
	// ComputeCapability is "major.minor", such as "9.0".
	ComputeCapability string
	// MemoryBytes is the total frame buffer in bytes, 0 if NVML has no number
	// (integrated GPUs share the system's memory).
	MemoryBytes uint64
	// AddressingMode is HMM, ATS or None, empty if NVML does not report it.
	AddressingMode string

	// PCIBusID is in sysfs' form, such as "0000:53:00.0".
	PCIBusID string
	// PCIeRoot is the root complex above the GPU, such as "pci0000:50".
	PCIeRoot string
	// NUMANode is nil if the firmware does not report it.
	NUMANode *int

	// ECCEnabled is nil on boards without ECC.
	ECCEnabled *bool
	// MIG is the mode that is in force now, not a pending one.
	MIG MIGMode
	// MIGSwitchable: the MIG mode changes at once, as on Hopper and later boards.
	// On others it takes a reset of the GPU.
	MIGSwitchable bool
	// Profiles are the MIG partitions that the board offers, as NVML lists
	// them; empty if it offers none.
	Profiles []Profile
	// Instances are the GPU instances that exist, whoever made them.
	Instances []Instance
	// NVLinkGroup is the smallest minor among the GPUs that reach each other
	// over NVLink, nil for a GPU with no active link. Two GPUs of a node are
	// connected exactly when their groups are equal.
	NVLinkGroup *int
	// Fabric is the GPU's state in the NVLink fabric.
	Fabric FabricState
}

// MIGMode is whether a GPU is cut into MIG partitions.
type MIGMode int

const (
	// MIGUnsupported is the mode of a board that cannot be partitioned.
	MIGUnsupported MIGMode = iota
	// MIGDisabled is the mode of a board that could be partitioned and is not.
	MIGDisabled
	// MIGEnabled is the mode of a board that can only be used through its partitions.
	MIGEnabled
)

// SortByLocality orders GPUs for publishing: those of one NUMA node and one
// PCIe root stand together, so that a claim with matchAttribute is satisfied
// by the first candidates the allocator tries. GPUs whose locality is unknown
// come last. The input is not changed.
func SortByLocality(gpus []GPU) []GPU {
	sorted := slices.Clone(gpus)
	slices.SortStableFunc(sorted, func(a, b GPU) int {
		return cmp.Or(
			compareKnown(a.NUMANode, b.NUMANode),
			cmp.Compare(a.PCIeRoot, b.PCIeRoot),
			cmp.Compare(a.Minor, b.Minor),
		)
	})
	return sorted
}

// compareKnown orders known numbers before unknown ones.
func compareKnown(a, b *int) int {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil:
		return 1
	case b == nil:
		return -1
	default:
		return cmp.Compare(*a, *b)
	}
}
