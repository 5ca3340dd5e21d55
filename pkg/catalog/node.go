package catalog

import (
	"fmt"
	"strconv"

	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// hopper is the first compute capability whose MIG mode changes without a reset
// (NVML_FI_DEV_IS_RESETLESS_MIG_SUPPORTED in nvml.h).
const hopper = 9

// Node is what NVML and sysfs will report on a node of the type. It leaves out what the catalogue
// does not know. UUIDs are made up, and so are the minor numbers, which follow the order of the
// PCI bus here. The versions may be empty.
func (i Instance) Node(driverVersion, cudaVersion string) gpu.Node {
	node := gpu.Node{DriverVersion: driverVersion, CUDAVersion: cudaVersion}
	for index, slot := range i.GPUs {
		g := i.Board.gpu(index)
		g.PCIBusID, g.PCIeRoot, g.NUMANode = slot.PCIBusID, slot.PCIeRoot, slot.NUMANode
		g.MemoryBytes, g.ECCEnabled = slot.MemoryMiB<<20, slot.ECC
		if i.NVLink && len(i.GPUs) > 1 {
			g.NVLinkGroup = ptr.To(0)
		}
		node.GPUs = append(node.GPUs, g)
	}
	return node
}

// Node is what NVML will report on a node with count GPUs of the board. Where they sit, and
// whether they are linked, is unknown.
func (b Board) Node(count int, driverVersion, cudaVersion string) gpu.Node {
	node := gpu.Node{DriverVersion: driverVersion, CUDAVersion: cudaVersion}
	for index := range count {
		node.GPUs = append(node.GPUs, b.gpu(index))
	}
	return node
}

// gpu is the board as it comes: MIG is off, ECC on.
func (b Board) gpu(index int) gpu.GPU {
	g := gpu.GPU{
		Index: index, Minor: index, UUID: InventedUUID(index),
		ProductName: b.ProductName, Brand: b.Brand, Architecture: b.Architecture,
		ComputeCapability: b.ComputeCapability, MemoryBytes: b.MemoryBytes(),
	}
	if b.ECC {
		g.ECCEnabled = ptr.To(true)
	}
	if b.MIG != nil {
		g.MIG, g.Profiles = gpu.MIGDisabled, b.MIG.GPUProfiles()
		major, _ := b.CUDAComputeCapability()
		g.MIGSwitchable = major >= hopper
	}
	return g
}

// InventedUUID is one that no GPU has.
func InventedUUID(index int) string {
	return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012s", strconv.FormatInt(int64(index), 16))
}
