package nvml

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// Discover reads the driver and every GPU. After the loss of a GPU, or if none could be read, it
// initializes NVML again, because NVML finds GPUs only then.
// It leaves out GPUs that cannot be read and reports them in unreadable, as ErrSilent if they do not
// answer. err is set only if nothing could be read.
func (l *Library) Discover() (node gpu.Node, unreadable []error, err error) {
	if err := l.sessions.renew(); err != nil {
		return gpu.Node{}, nil, err
	}
	in, leave, err := l.sessions.enter()
	if err != nil {
		return gpu.Node{}, nil, err
	}
	defer leave()
	if node, err = in.system(); err != nil {
		return gpu.Node{}, nil, err
	}
	count, ret := in.api.DeviceGetCount()
	if err := check(ret, "count the GPUs", ""); err != nil {
		return gpu.Node{}, nil, err
	}
	if count < 0 || count > maxGPUs {
		return gpu.Node{}, nil, fmt.Errorf("count the GPUs: NVML says that there are %d: reload the NVIDIA driver, or reboot the node", count)
	}
	in.counted(count)
	reader := deviceReader{session: in, lib: nvlib.New(in.api), sysfs: l.sysfs}
	for index := range count {
		g, err := bounded(&l.sessions, lookAt(index), func() (gpu.GPU, error) { return reader.read(index) })
		if err == nil {
			err = distinct(g, node.GPUs)
		}
		if err != nil {
			unreadable = append(unreadable, &UnreadableError{Index: index, Err: err})
			continue
		}
		node.GPUs = append(node.GPUs, g)
	}
	if len(node.GPUs) == 0 && len(unreadable) > 0 {
		in.outdate()
	}
	node.GPUs = in.group(node.GPUs)
	return node, unreadable, nil
}

// maxGPUs is more than any machine has.
const maxGPUs = 256

// uuids are in the names of files, too.
var uuids = regexp.MustCompile(`^[A-Za-z0-9-]{1,96}$`)

func isUUID(text string) bool { return uuids.MatchString(text) }

// distinct refuses a GPU whose devices could be mistaken for another's.
func distinct(g gpu.GPU, others []gpu.GPU) error {
	for _, other := range others {
		if g.UUID == other.UUID || g.Minor == other.Minor {
			return fmt.Errorf("GPU %d has the UUID %s and the minor number %d, GPU %d has %s and %d", g.Index, g.UUID, g.Minor, other.Index, other.UUID, other.Minor)
		}
	}
	return nil
}

func (s *session) system() (gpu.Node, error) {
	driver, err := s.driverVersion()
	if err != nil {
		return gpu.Node{}, err
	}
	cuda, ret := s.api.SystemGetCudaDriverVersion_v2()
	if err := check(ret, "read the CUDA version", ""); err != nil {
		return gpu.Node{}, err
	}
	// NVML encodes major*1000 + minor*10 (NVML_CUDA_DRIVER_VERSION_MAJOR in nvml.h).
	return gpu.Node{DriverVersion: driver, CUDAVersion: fmt.Sprintf("%d.%d", cuda/1000, cuda%1000/10)}, nil
}

func (s *session) driverVersion() (string, error) {
	version, ret := s.api.SystemGetDriverVersion()
	if err := check(ret, "read the driver version", ""); err != nil {
		return "", err
	}
	branch, _, _ := strings.Cut(version, ".")
	if release, err := strconv.Atoi(branch); err == nil {
		s.release.Store(int64(release))
	}
	return version, nil
}

// driverRelease is the first number of the driver's version, or 0 if it has none. The kernel module
// stays the same while a session holds it.
func (s *session) driverRelease() int {
	if s.release.Load() == 0 {
		_, _ = s.driverVersion() // without it, the XID table decides
	}
	return int(s.release.Load())
}

// deviceReader reads GPUs one by one.
type deviceReader struct {
	session *session
	lib     nvlib.Interface
	sysfs   fs.ReadLinkFS
}

func (r deviceReader) read(index int) (gpu.GPU, error) {
	name := fmt.Sprintf("GPU %d", index)
	handle, ret := r.session.api.DeviceGetHandleByIndex(index)
	if err := check(ret, "open", name); err != nil {
		return gpu.GPU{}, r.session.judge(nil, err)
	}
	g := gpu.GPU{Index: index}
	if err := readIdentity(handle, name, &g); err != nil {
		return gpu.GPU{}, r.session.judge(nil, err)
	}
	d := r.session.keep(g.UUID, handle)
	if err := r.readRest(d, name, &g); err != nil {
		return gpu.GPU{}, r.session.judge(d, callIt(name, g.UUID, err))
	}
	return g, nil
}

// callIt adds a GPU's name to an error of a discovery.
func callIt(name, uuid string, err error) error {
	if answer := new(Error); errors.As(err, &answer) && answer.Device == uuid {
		answer.Device = name
	}
	return err
}

func (r deviceReader) readRest(d *device, name string, g *gpu.GPU) error {
	if err := r.readNames(d.Device, name, g); err != nil {
		return err
	}
	if err := readECC(d.Device, name, g); err != nil {
		return err
	}
	r.readLocality(g)
	return d.discover(g)
}

func readIdentity(handle nvml.Device, name string, g *gpu.GPU) error {
	var ret nvml.Return
	if g.Minor, ret = handle.GetMinorNumber(); ret != nvml.SUCCESS {
		return check(ret, "read the minor number", name)
	}
	if g.UUID, ret = handle.GetUUID(); ret != nvml.SUCCESS {
		return check(ret, "read the UUID", name)
	}
	if g.Minor < 0 || !isUUID(g.UUID) {
		return fmt.Errorf("read the identity of %s: NVML says that its minor number is %d and its UUID %q", name, g.Minor, g.UUID)
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

// readNames uses go-nvlib's spelling, which NVIDIA's driver publishes. It leaves out a brand,
// architecture or addressing mode without a name in go-nvlib: a board newer than this build is still
// usable.
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

func readECC(handle nvml.Device, name string, g *gpu.GPU) error {
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

// readLocality leaves out what sysfs lacks: virtual machines often have no PCIe root port or NUMA node
// for a passed-through GPU.
func (r deviceReader) readLocality(g *gpu.GPU) {
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIBusID, deviceattribute.WithFS(r.sysfs)); err == nil {
		g.PCIeRoot = ptr.Deref(root.Value.StringValue, "")
	}
	numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCIBusID, deviceattribute.ScalarAttribute, deviceattribute.WithFS(r.sysfs))
	if err == nil && numa.Value.IntValue != nil {
		g.NUMANode = ptr.To(int(*numa.Value.IntValue))
	}
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
