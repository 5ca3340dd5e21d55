package nvml

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Discover reads the driver and every GPU. sysfs is the file system of the
// machine's /sys, from which the PCIe root and the NUMA node come.
//
// A GPU that cannot be read is left out and reported in unreadable; the others
// are returned all the same. err is set only when nothing could be read.
func (l *Library) Discover(sysfs fs.ReadLinkFS) (node gpu.Node, unreadable []error, err error) {
	node, err = l.system()
	if err != nil {
		return gpu.Node{}, nil, err
	}
	count, ret := l.api.DeviceGetCount()
	if err := check(ret, "count the GPUs", ""); err != nil {
		return gpu.Node{}, nil, err
	}
	links := map[string]gpu.Link{}
	reader := deviceReader{lib: device.New(l.api), sysfs: sysfs}
	for index := range count {
		g, link, err := reader.read(l.api, index)
		if err != nil {
			unreadable = append(unreadable, err)
			continue
		}
		links[g.UUID] = link
		node.GPUs = append(node.GPUs, g)
	}
	node.GPUs = gpu.GroupByNVLink(node.GPUs, links)
	return node, unreadable, nil
}

func (l *Library) system() (gpu.Node, error) {
	driver, ret := l.api.SystemGetDriverVersion()
	if err := check(ret, "read the driver version", ""); err != nil {
		return gpu.Node{}, err
	}
	cuda, ret := l.api.SystemGetCudaDriverVersion_v2()
	if err := check(ret, "read the CUDA version", ""); err != nil {
		return gpu.Node{}, err
	}
	// NVML encodes major*1000 + minor*10 (NVML_CUDA_DRIVER_VERSION_MAJOR in nvml.h).
	return gpu.Node{DriverVersion: driver, CUDAVersion: fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)}, nil
}

// deviceReader reads one GPU after the other.
type deviceReader struct {
	lib   device.Interface
	sysfs fs.ReadLinkFS
}

func (r deviceReader) read(api nvml.Interface, index int) (gpu.GPU, gpu.Link, error) {
	name := fmt.Sprintf("GPU %d", index)
	handle, ret := api.DeviceGetHandleByIndex(index)
	if err := check(ret, "open", name); err != nil {
		return gpu.GPU{}, gpu.Link{}, err
	}
	g := gpu.GPU{Index: index}
	if err := readIdentity(handle, name, &g); err != nil {
		return gpu.GPU{}, gpu.Link{}, err
	}
	if err := r.readNames(handle, name, &g); err != nil {
		return gpu.GPU{}, gpu.Link{}, err
	}
	if err := readModes(handle, name, &g); err != nil {
		return gpu.GPU{}, gpu.Link{}, err
	}
	if err := readMIG(handle, name, &g); err != nil {
		return gpu.GPU{}, gpu.Link{}, err
	}
	r.readLocality(&g)
	link, err := readLinks(api, handle, name)
	if err != nil {
		return gpu.GPU{}, gpu.Link{}, err
	}
	return g, link, nil
}

func readIdentity(handle nvml.Device, name string, g *gpu.GPU) error {
	var ret nvml.Return
	if g.Minor, ret = handle.GetMinorNumber(); ret != nvml.SUCCESS {
		return check(ret, "read the minor number", name)
	}
	if g.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		return check(ret, "read the UUID", name)
	}
	if g.ProductName, ret = handle.GetName(); ret != nvml.SUCCESS {
		return check(ret, "read the product name", name)
	}
	pci, ret := handle.GetPciInfo()
	if ret != nvml.SUCCESS {
		return check(ret, "read the PCI address", name)
	}
	g.PCIBusID = sysfsBusID(pci)
	memory, ret := handle.GetMemoryInfo()
	if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_SUPPORTED {
		return check(ret, "read the memory size", name)
	}
	g.MemoryBytes = memory.Total
	return nil
}

// readNames uses go-nvlib's spelling, which is what NVIDIA's driver publishes.
// A brand, architecture or addressing mode that go-nvlib has no word for yet is
// left out: a board that is newer than this build is still a usable GPU.
func (r deviceReader) readNames(handle nvml.Device, name string, g *gpu.GPU) error {
	if _, ret := handle.GetBrand(); ret == nvml.ERROR_GPU_IS_LOST {
		return check(ret, "read the brand", name)
	}
	if _, ret := handle.GetArchitecture(); ret != nvml.SUCCESS {
		return check(ret, "read the architecture", name)
	}
	major, minor, ret := handle.GetCudaComputeCapability()
	if ret != nvml.SUCCESS {
		return check(ret, "read the compute capability", name)
	}
	g.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
	named, err := r.lib.NewDevice(handle)
	if err != nil {
		return fmt.Errorf("read the names of %s: %w", name, err)
	}
	g.Brand = orUnknown(named.GetBrandAsString)
	g.Architecture = orUnknown(named.GetArchitectureAsString)
	g.AddressingMode = orUnknown(named.GetAddressingModeAsString)
	return nil
}

func orUnknown(read func() (string, error)) string {
	text, err := read()
	if err != nil {
		return ""
	}
	return text
}

func readModes(handle nvml.Device, name string, g *gpu.GPU) error {
	var err error
	if g.MIG, err = readMIGMode(handle, name); err != nil {
		return err
	}
	switch current, _, ret := handle.GetEccMode(); {
	case ret == nvml.ERROR_GPU_IS_LOST:
		return check(ret, "read the ECC mode", name)
	case ret != nvml.SUCCESS:
		g.ECCEnabled = nil
	default:
		g.ECCEnabled = ptr.To(current == nvml.FEATURE_ENABLED)
	}
	return nil
}

// readLocality leaves out what sysfs does not tell: virtual machines often
// have no PCIe root port or NUMA node for a passed-through GPU.
func (r deviceReader) readLocality(g *gpu.GPU) {
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIBusID, deviceattribute.WithFS(r.sysfs)); err == nil {
		g.PCIeRoot = ptr.Deref(root.Value.StringValue, "")
	}
	numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCIBusID, deviceattribute.ScalarAttribute, deviceattribute.WithFS(r.sysfs))
	if err == nil && numa.Value.IntValue != nil {
		g.NUMANode = ptr.To(int(*numa.Value.IntValue))
	}
}

// readLinks stops at the first link into a switch: all of a GPU's links then
// end in the same fabric. A link that cannot be read counts as none: only a GPU
// that is lost is no GPU.
func readLinks(api nvml.Interface, handle nvml.Device, name string) (gpu.Link, error) {
	var link gpu.Link
	for number := range nvml.NVLINK_MAX_LINKS {
		state, ret := handle.GetNvLinkState(number)
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_INVALID_ARGUMENT {
			return link, nil // past the board's last link, or no NVLink at all
		}
		if ret == nvml.ERROR_GPU_IS_LOST {
			return gpu.Link{}, check(ret, fmt.Sprintf("read NVLink %d", number), name)
		}
		if ret != nvml.SUCCESS || state != nvml.FEATURE_ENABLED {
			continue
		}
		switch remote, ret := handle.GetNvLinkRemoteDeviceType(number); {
		case ret == nvml.SUCCESS && remote == nvml.NVLINK_DEVICE_TYPE_SWITCH:
			return gpu.Link{Switched: true}, nil
		case ret == nvml.SUCCESS && remote == nvml.NVLINK_DEVICE_TYPE_GPU:
			link.Peers = append(link.Peers, linkPeer(api, handle, number)...)
		}
	}
	return link, nil
}

// linkPeer is the UUID of the GPU at the other end of a link, or nothing when
// that GPU is not visible here, as in a virtual machine that has only some, or
// does not answer: that is its own fault and no reason to withdraw this one.
func linkPeer(api nvml.Interface, handle nvml.Device, number int) []string {
	remote, ret := handle.GetNvLinkRemotePciInfo(number)
	if ret != nvml.SUCCESS {
		return nil
	}
	peer, ret := api.DeviceGetHandleByPciBusId(sysfsBusID(remote))
	if ret != nvml.SUCCESS {
		return nil
	}
	uuid, ret := peer.GetUUID()
	if ret != nvml.SUCCESS {
		return nil
	}
	return []string{uuid}
}

// sysfsBusID turns NVML's "00000000:53:00.0" into sysfs' "0000:53:00.0".
func sysfsBusID(pci nvml.PciInfo) string {
	var text strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		text.WriteByte(byte(c))
	}
	id := strings.ToLower(text.String())
	if len(id) == len("00000000:53:00.0") {
		id = id[4:]
	}
	return id
}
