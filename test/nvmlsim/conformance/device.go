package conformance

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	nvlibdevice "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (s suite) lookup(t *testing.T) {
	lib := s.open(t)
	gives(t, "the number of GPUs", len(s.node.GPUs))(lib.DeviceGetCount())
	seen := map[string]int{}
	for i, g := range s.node.GPUs {
		id := s.lookupOne(t, lib, i, g)
		if other, taken := seen[id]; taken {
			t.Errorf("GPUs %d and %d have the same UUID %s", other, i, id)
		}
		seen[id] = i
	}
	refuses(t, "an index past the end", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByIndex(len(s.node.GPUs)))
	refuses(t, "index -1", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByIndex(-1))
	refuses(t, "an unknown UUID", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByUUID("GPU-00000000-0000-4000-8000-000000000000"))
	refuses(t, "an empty UUID", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByUUID(""))
	refuses(t, "an unknown PCI address", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByPciBusId("00000000:FE:1F.0"))
	refuses(t, "an address that is none", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByPciBusId("first slot"))
	refuses(t, "an unknown serial", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleBySerial("0"))
}

// lookupOne finds one GPU in every way there is and returns its UUID.
func (s suite) lookupOne(t *testing.T, lib nvml.Interface, index int, g model.GPU) string {
	t.Helper()
	want := uuid(t, device(t, lib, index))
	serial, ret := device(t, lib, index).GetSerial()
	returns(t, "GetSerial", nvml.SUCCESS, ret)
	binary, ascii := uuidStructs(t, want)

	for what, find := range map[string]func() (nvml.Device, nvml.Return){
		"UUID":                  func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUID(want) },
		"UUID struct in ASCII":  func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUIDV(ascii) },
		"UUID struct in binary": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUIDV(binary) },
		"PCI address":           func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(g.PCIBusID) },
		"PCI address as NVML's": func() (nvml.Device, nvml.Return) {
			return lib.DeviceGetHandleByPciBusId("0000" + strings.ToUpper(g.PCIBusID))
		},
		"PCI address, no domain": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(g.PCIBusID[5:]) },
		"serial":                 func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleBySerial(serial) },
	} {
		d, ret := find()
		if ret != nvml.SUCCESS {
			t.Errorf("find GPU %d by %s: %v", index, what, ret)
			continue
		}
		if got := uuid(t, d); got != want {
			t.Errorf("GPU %d found by %s is %s, want %s", index, what, got, want)
		}
		gives(t, "the index of a GPU found by "+what, index)(d.GetIndex())
	}
	wrong := *ascii
	wrong.Version++
	refuses(t, "a UUID struct of an unknown version", nvml.ERROR_ARGUMENT_VERSION_MISMATCH)(lib.DeviceGetHandleByUUIDV(&wrong))
	return want
}

func uuidStructs(t *testing.T, id string) (binary, ascii *nvml.UUID) {
	t.Helper()
	binary = &nvml.UUID{Type: uint32(nvml.UUID_TYPE_BINARY)}
	binary.Version = nvml.STRUCT_VERSION(*binary, 1)
	digits := strings.ReplaceAll(id[len("GPU-"):], "-", "")
	for i := range 16 {
		if _, err := fmt.Sscanf(digits[2*i:2*i+2], "%02x", &binary.Value[i]); err != nil {
			t.Fatalf("UUID %s is not hexadecimal: %v", id, err)
		}
	}
	ascii = &nvml.UUID{Type: uint32(nvml.UUID_TYPE_ASCII)}
	ascii.Version = nvml.STRUCT_VERSION(*ascii, 1)
	copy(ascii.Value[:], id)
	return binary, ascii
}

var uuidPattern = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func (s suite) identity(t *testing.T) {
	state := s.state(t)
	nvlib := nvlibdevice.New(s.open(t))
	s.each(t, func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device) {
		spec, board := s.node.GPUs[gpu], s.board(t, gpu)
		gives(t, "the name", board.ProductName)(d.GetName())
		gives(t, "the name through the library", board.ProductName)(lib.DeviceGetName(d))
		gives(t, "the minor", spec.Minor)(d.GetMinorNumber())
		gives(t, "the index", gpu)(d.GetIndex())
		gives(t, "the module", spec.ModuleID)(d.GetModuleId())
		gives(t, "the UUID", state.GPUs[gpu].UUID)(d.GetUUID())
		if !uuidPattern.MatchString(state.GPUs[gpu].UUID) {
			t.Errorf("UUID %q does not look like one of version 4", state.GPUs[gpu].UUID)
		}
		major, minor, ret := d.GetCudaComputeCapability()
		gives(t, "the compute capability", board.ComputeCapability)(fmt.Sprintf("%d.%d", major, minor), ret)
		s.identityStrings(t, d)

		wrapped, err := nvlib.NewDevice(d)
		act(t, err)
		for want, got := range map[string]func() (string, error){
			board.Architecture:             wrapped.GetArchitectureAsString,
			board.Brand:                    wrapped.GetBrandAsString,
			board.ComputeCapability:        wrapped.GetCudaComputeCapabilityAsString,
			strings.ToLower(spec.PCIBusID): wrapped.GetPCIBusID,
			"None":                         wrapped.GetAddressingModeAsString,
		} {
			if text, err := got(); err != nil || text != want {
				t.Errorf("go-nvlib reads %q (%v), want %q", text, err, want)
			}
		}
	})
}

// identityStrings checks the strings with room to say that this is a simulator.
func (s suite) identityStrings(t *testing.T, d nvml.Device) {
	t.Helper()
	for what, get := range map[string]func() (string, nvml.Return){
		"serial":          d.GetSerial,
		"VBIOS version":   d.GetVbiosVersion,
		"inforom version": d.GetInforomImageVersion,
		"part number":     d.GetBoardPartNumber,
	} {
		got, ret := get()
		returns(t, what, nvml.SUCCESS, ret)
		if !strings.HasPrefix(got, "SIM") {
			t.Errorf("the %s is %q, which does not say that it is simulated", what, got)
		}
	}
	gives(t, "the display mode", nvml.FEATURE_DISABLED)(d.GetDisplayMode())
	gives(t, "the display", nvml.FEATURE_DISABLED)(d.GetDisplayActive())
	gives(t, "the virtualization mode", nvml.GPU_VIRTUALIZATION_MODE_NONE)(d.GetVirtualizationMode())
	gives(t, "whether it is a MIG device", false)(d.IsMigDeviceHandle())
	gives(t, "whether the board has more GPUs", 0)(d.GetMultiGpuBoard())
}

func (s suite) pci(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		spec, board := s.node.GPUs[gpu], s.board(t, gpu)
		address, err := model.ParsePCIAddress(spec.PCIBusID)
		act(t, err)
		info, ret := d.GetPciInfo()
		returns(t, "GetPciInfo", nvml.SUCCESS, ret)
		ext, ret := d.GetPciInfoExt()
		returns(t, "GetPciInfoExt", nvml.SUCCESS, ret)

		id := uint32(board.PCIDeviceID)<<16 | 0x10de
		got := nvml.PciInfo{Domain: ext.Domain, Bus: ext.Bus, Device: ext.Device, PciDeviceId: ext.PciDeviceId, PciSubSystemId: ext.PciSubSystemId, BusId: ext.BusId, BusIdLegacy: info.BusIdLegacy}
		if got != info {
			t.Errorf("GetPciInfoExt says %+v, GetPciInfo %+v", got, info)
		}
		if info.Domain != address.Domain || info.Bus != address.Bus || info.Device != address.Device || info.PciDeviceId != id {
			t.Errorf("PCI info is %+v, want %s and device ID %#x", info, spec.PCIBusID, id)
		}
		if ext.BaseClass != 3 || ext.SubClass != 2 {
			t.Errorf("class is %#x %#x, want a 3D controller", ext.BaseClass, ext.SubClass)
		}
		if want := "0000" + strings.ToUpper(spec.PCIBusID); text(info.BusId[:]) != want {
			t.Errorf("bus ID is %q, want %q", text(info.BusId[:]), want)
		}
		if want := strings.ToUpper(spec.PCIBusID); text(info.BusIdLegacy[:]) != want {
			t.Errorf("legacy bus ID is %q, want %q", text(info.BusIdLegacy[:]), want)
		}
		gives(t, "the board ID", address.Domain<<16|address.Bus<<8|address.Device)(d.GetBoardId())
	})
}

func (s suite) memory(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		total := s.board(t, gpu).MemoryBytes()
		gives(t, "the memory", nvml.Memory{Total: total, Free: total})(d.GetMemoryInfo())
		v2, ret := d.GetMemoryInfo_v2()
		returns(t, "GetMemoryInfo_v2", nvml.SUCCESS, ret)
		if v2.Total != total || v2.Free+v2.Used+v2.Reserved != total {
			t.Errorf("memory is %+v, whose parts do not add up to %d", v2, total)
		}
		bar1, ret := d.GetBAR1MemoryInfo()
		returns(t, "GetBAR1MemoryInfo", nvml.SUCCESS, ret)
		if bar1.Bar1Total < total || bar1.Bar1Free+bar1.Bar1Used != bar1.Bar1Total {
			t.Errorf("BAR1 is %+v for a memory of %d bytes", bar1, total)
		}
	})
}

func (s suite) affinity(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		node := s.node.GPUs[gpu].NUMANode
		var cpus []int
		for _, n := range s.node.NUMANodes {
			if n.ID == node {
				parsed, err := model.ParseCPUList(n.CPUs)
				act(t, err)
				cpus = parsed
			}
		}
		if node < 0 {
			refuses(t, "GetCpuAffinity", nvml.ERROR_NOT_SUPPORTED)(d.GetCpuAffinity(64))
			return
		}
		set, ret := d.GetCpuAffinity(192)
		returns(t, "GetCpuAffinity", nvml.SUCCESS, ret)
		if got := members(set); fmt.Sprint(got) != fmt.Sprint(cpus) {
			t.Errorf("CPUs near GPU %d are %v, want %v", gpu, got, cpus)
		}
		set, ret = d.GetMemoryAffinity(8, nvml.AFFINITY_SCOPE_NODE)
		returns(t, "GetMemoryAffinity", nvml.SUCCESS, ret)
		if got := members(set); len(got) != 1 || got[0] != node {
			t.Errorf("memory near GPU %d is on nodes %v, want %d", gpu, got, node)
		}
	})
}

// members lists the bits of a set.
func members(set []uint) []int {
	var bits []int
	for word, value := range set {
		for bit := range 64 {
			if value&(1<<bit) != 0 {
				bits = append(bits, word*64+bit)
			}
		}
	}
	return bits
}

func (s suite) modes(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		gives(t, "the compute mode", nvml.COMPUTEMODE_DEFAULT)(d.GetComputeMode())
		for _, mode := range []nvml.ComputeMode{nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.COMPUTEMODE_PROHIBITED, nvml.COMPUTEMODE_DEFAULT} {
			if s.enabled(gpu) && mode != nvml.COMPUTEMODE_DEFAULT {
				returns(t, "SetComputeMode with MIG", nvml.ERROR_NOT_SUPPORTED, d.SetComputeMode(mode))
				continue
			}
			returns(t, "SetComputeMode", nvml.SUCCESS, d.SetComputeMode(mode))
			gives(t, "the compute mode", mode)(d.GetComputeMode())
		}
		returns(t, "an unknown compute mode", nvml.ERROR_INVALID_ARGUMENT, d.SetComputeMode(nvml.COMPUTEMODE_COUNT))
		returns(t, "a compute mode of old", nvml.ERROR_NOT_SUPPORTED, d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_THREAD))

		gives(t, "the persistence mode", nvml.FEATURE_DISABLED)(d.GetPersistenceMode())
		returns(t, "SetPersistenceMode", nvml.SUCCESS, d.SetPersistenceMode(nvml.FEATURE_ENABLED))
		gives(t, "the persistence mode", nvml.FEATURE_ENABLED)(d.GetPersistenceMode())
		returns(t, "an unknown persistence mode", nvml.ERROR_INVALID_ARGUMENT, d.SetPersistenceMode(7))

		current, pending, ret := d.GetEccMode()
		if !s.board(t, gpu).ECC {
			returns(t, "GetEccMode", nvml.ERROR_NOT_SUPPORTED, ret)
			return
		}
		gives(t, "the current ECC mode", nvml.FEATURE_ENABLED)(current, ret)
		gives(t, "the pending ECC mode", nvml.FEATURE_ENABLED)(pending, ret)
	})
}

func (s suite) processes(t *testing.T) {
	s.each(t, func(t *testing.T, _ nvml.Interface, _ int, d nvml.Device) {
		for what, get := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
			"compute":  d.GetComputeRunningProcesses,
			"graphics": d.GetGraphicsRunningProcesses,
			"MPS":      d.GetMPSComputeRunningProcesses,
		} {
			list, ret := get()
			if ret != nvml.SUCCESS || len(list) != 0 {
				t.Errorf("%s processes are %v (%v), want none", what, list, ret)
			}
		}
	})
}
