package driverroot

import (
	"fmt"
	"path"
	"strings"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// place shows in sysfs where a GPU is: below which PCIe root, and on which NUMA node.
func (t *Tree) place(gpu model.GPUInfo) {
	t.file(path.Join(placeDir(gpu), "numa_node"), fmt.Sprintln(gpu.NUMANode))
	t.link(placeLink(gpu), "/"+placeDir(gpu))
}

func (t *Tree) removePlace(gpu model.GPUInfo) {
	t.remove(placeLink(gpu))
	t.remove(placeDir(gpu))
}

func placeDir(gpu model.GPUInfo) string {
	bridges := strings.ToLower(path.Join(gpu.PCIBridges...))
	return path.Join("sys/devices", gpu.PCIRoot, bridges, gpu.Address.String())
}

func placeLink(gpu model.GPUInfo) string {
	return path.Join("sys/bus/pci/devices", gpu.Address.String())
}
