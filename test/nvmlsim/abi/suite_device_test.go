package abi_test

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
	lib := initialised(t)
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
}

// lookupOne finds one GPU in every way there is and returns its UUID.
func (s suite) lookupOne(t *testing.T, lib nvml.Interface, index int, g model.GPU) string {
	t.Helper()
	want := uuid(t, device(t, lib, index))
	for what, find := range map[string]func() (nvml.Device, nvml.Return){
		"UUID":        func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByUUID(want) },
		"PCI address": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(g.PCIBusID) },
		"PCI address as NVML's": func() (nvml.Device, nvml.Return) {
			return lib.DeviceGetHandleByPciBusId("0000" + strings.ToUpper(g.PCIBusID))
		},
		"PCI address, no domain": func() (nvml.Device, nvml.Return) { return lib.DeviceGetHandleByPciBusId(g.PCIBusID[5:]) },
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
	return want
}

var uuidPattern = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

func (s suite) identity(t *testing.T) {
	state := s.state(t)
	nvlib := nvlibdevice.New(initialised(t))
	s.each(t, func(t *testing.T, _ nvml.Interface, gpu int, d nvml.Device) {
		spec, board := s.node.GPUs[gpu], s.board(t, gpu)
		gives(t, "the name", board.ProductName)(d.GetName())
		gives(t, "the minor", spec.Minor)(d.GetMinorNumber())
		gives(t, "the index", gpu)(d.GetIndex())
		gives(t, "the UUID", state.GPUs[gpu].UUID)(d.GetUUID())
		if !uuidPattern.MatchString(state.GPUs[gpu].UUID) {
			t.Errorf("UUID %q does not look like one of version 4", state.GPUs[gpu].UUID)
		}
		major, minor, ret := d.GetCudaComputeCapability()
		gives(t, "the compute capability", board.ComputeCapability)(fmt.Sprintf("%d.%d", major, minor), ret)

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
