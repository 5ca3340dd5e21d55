package driverroot

import (
	"encoding/binary"
	"fmt"
	"path"
	"strings"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

const (
	nvidiaVendor = 0x10de
	bridgeVendor = 0x1d0f // Amazon.com, whose bridges stand above the GPUs of EC2

	class3DController = 0x030200
	classPCIBridge    = 0x060400
	classNVSwitch     = 0x068000
)

func (t *Tree) sys(machine *model.Machine) {
	file := machine.File()
	t.dir("sys/bus/pci/drivers/nvidia")
	t.numa(file)
	t.nvSwitches(file)
}

// pciFunction is one function on the bus as sysfs shows it.
type pciFunction struct {
	dir        string // below sys, with the hierarchy above it
	class      uint32
	vendor     uint16
	device     uint16
	numaNode   int
	cpus       string
	bars       []bar
	driver     string
	iommuGroup int
}

// bar is one region of a function's address space.
type bar struct {
	index       int
	start, size uint64
	flags       uint64
}

// Flags of a region in sysfs's resource file: IORESOURCE_MEM, and of the second
// kind IORESOURCE_PREFETCH and IORESOURCE_MEM_64.
const (
	barMemory       = 0x00040200
	barPrefetchable = 0x0014220c
)

const noIOMMUGroup = -1

func (t *Tree) gpu(file model.File, gpu model.GPUInfo) {
	dir := path.Join("devices", gpu.PCIRoot)
	for _, bridge := range gpu.PCIBridges {
		dir = path.Join(dir, strings.ToLower(bridge))
		t.bridge(file, dir, gpu.NUMANode)
	}
	f := gpuFunction(gpu)
	f.cpus = cpusOf(file, gpu.NUMANode)
	t.function(f)
}

func gpuFunction(gpu model.GPUInfo) pciFunction {
	above := append([]string{"devices", gpu.PCIRoot}, gpu.PCIBridges...)
	// Regions are apart from those of other GPUs and aligned to their size.
	window := uint64(gpu.Index+1) << 40
	return pciFunction{
		dir: path.Join(strings.ToLower(path.Join(above...)), gpu.Address.String()), class: class3DController,
		vendor: nvidiaVendor, device: uint16(gpu.Board.PCIDeviceID),
		numaNode: gpu.NUMANode,
		bars: []bar{
			{0, 0x80000000 + uint64(gpu.Index)<<24, 16 << 20, barMemory},
			{1, window, gpu.BAR1Bytes, barPrefetchable},
			{3, window + gpu.BAR1Bytes, 32 << 20, barPrefetchable},
		},
		driver: "nvidia", iommuGroup: gpu.IOMMUGroup,
	}
}

func (t *Tree) bridge(file model.File, dir string, numaNode int) {
	if t.has(path.Join(PCIDevices, path.Base(dir))) {
		return
	}
	t.function(pciFunction{
		dir: dir, class: classPCIBridge, vendor: bridgeVendor, device: 0x0200,
		numaNode: numaNode, cpus: cpusOf(file, numaNode), driver: "pcieport", iommuGroup: noIOMMUGroup,
	})
}

// nvSwitches shows the switches that are PCI devices of the host, each below a
// root of its own bus: the description does not say where they hang.
func (t *Tree) nvSwitches(file model.File) {
	for i, s := range file.NVSwitches {
		if s.PCIBusID == "" {
			continue
		}
		address, err := model.ParsePCIAddress(s.PCIBusID)
		t.fail(err)
		t.function(pciFunction{
			dir:   path.Join("devices", fmt.Sprintf("pci%04x:%02x", address.Domain, address.Bus), address.String()),
			class: classNVSwitch, vendor: nvidiaVendor, device: uint16(s.PCIDeviceID), numaNode: -1,
			bars:   []bar{{0, 0x70000000 + uint64(i)<<25, 32 << 20, barMemory}},
			driver: "nvidia-nvswitch", iommuGroup: noIOMMUGroup,
		})
	}
}

func (t *Tree) function(f pciFunction) {
	dir := path.Join("sys", f.dir)
	for name, content := range map[string]string{
		"vendor":           fmt.Sprintf("0x%04x", f.vendor),
		"device":           fmt.Sprintf("0x%04x", f.device),
		"subsystem_vendor": fmt.Sprintf("0x%04x", f.vendor),
		"subsystem_device": fmt.Sprintf("0x%04x", f.device),
		"class":            fmt.Sprintf("0x%06x", f.class),
		"revision":         "0xa1",
		"irq":              "0",
		"enable":           "1",
		"numa_node":        fmt.Sprint(f.numaNode),
		"local_cpulist":    f.cpus,
		"resource":         resourceFile(f.bars),
	} {
		t.file(path.Join(dir, name), content+"\n")
	}
	t.file(path.Join(dir, "config"), string(configSpace(f)))
	t.link(path.Join(dir, "driver"), "/sys/bus/pci/drivers/"+f.driver)
	if f.iommuGroup != noIOMMUGroup {
		t.link(path.Join(dir, "iommu_group"), fmt.Sprintf("/sys/kernel/iommu_groups/%d", f.iommuGroup))
	}
	for _, link := range f.links() {
		t.link(link, "/"+dir)
	}
}

// links lead to the function from elsewhere.
func (f pciFunction) links() []string {
	address := path.Base(f.dir)
	links := []string{path.Join(PCIDevices, address), path.Join("sys/bus/pci/drivers", f.driver, address)}
	if f.iommuGroup != noIOMMUGroup {
		links = append(links, fmt.Sprintf("sys/kernel/iommu_groups/%d/devices/%s", f.iommuGroup, address))
	}
	return links
}

func (t *Tree) removeFunction(f pciFunction) {
	for _, link := range f.links() {
		t.remove(link)
	}
	t.remove(path.Join("sys", f.dir))
}

// resourceFile lists the regions: six, the ROM's and six of virtual functions.
func resourceFile(bars []bar) string {
	const regions = 13
	lines := make([]string, regions)
	for i := range lines {
		lines[i] = fmt.Sprintf("0x%016x 0x%016x 0x%016x", 0, 0, 0)
	}
	for _, b := range bars {
		lines[b.index] = fmt.Sprintf("0x%016x 0x%016x 0x%016x", b.start, b.start+b.size-1, b.flags)
	}
	return strings.Join(lines, "\n")
}

// configSpace is a standard header with the PCI Express capability.
func configSpace(f pciFunction) []byte {
	const (
		size             = 256
		statusHasCaps    = 0x10
		capabilities     = 0x34
		expressOffset    = 0x60
		expressID        = 0x10
		commandMemoryBus = 0x06
	)
	config := make([]byte, size)
	le := binary.LittleEndian
	le.PutUint16(config[0x00:], f.vendor)
	le.PutUint16(config[0x02:], f.device)
	le.PutUint16(config[0x04:], commandMemoryBus)
	le.PutUint16(config[0x06:], statusHasCaps)
	le.PutUint32(config[0x08:], f.class<<8|0xa1)
	if f.class == classPCIBridge {
		config[0x0e] = 1
	} else {
		le.PutUint16(config[0x2c:], f.vendor)
		le.PutUint16(config[0x2e:], f.device)
	}
	config[capabilities] = expressOffset
	config[expressOffset] = expressID
	return config
}
