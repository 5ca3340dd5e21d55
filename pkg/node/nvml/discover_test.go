package nvml_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"testing/fstest"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

func TestDiscoverReadsTheMachine(t *testing.T) {
	for _, name := range nodes.Names() {
		t.Run(name, func(t *testing.T) {
			file := fixture.File(t, name)
			machine := fixture.Machine(t, file)
			node := fixture.Node(t, name)
			if node.DriverVersion != file.DriverVersion || node.CUDAVersion != file.CUDADriverVersion {
				t.Errorf("got driver %s and CUDA %s, want %s and %s", node.DriverVersion, node.CUDAVersion, file.DriverVersion, file.CUDADriverVersion)
			}
			if len(node.GPUs) != len(file.GPUs) {
				t.Fatalf("got %d GPUs, want %d", len(node.GPUs), len(file.GPUs))
			}
			for i := range machine.GPUs() {
				checkGPU(t, node.GPUs[i], i, machine, file)
			}
		})
	}
}

func checkGPU(t *testing.T, got gpu.GPU, index int, machine *model.Machine, file model.File) {
	t.Helper()
	info := machine.GPUs()[index]
	want := gpu.GPU{
		Index: index, Minor: info.Minor, UUID: info.UUID,
		ProductName: info.Board.ProductName, Brand: info.Board.Brand, Architecture: info.Board.Architecture,
		ComputeCapability: info.Board.ComputeCapability, MemoryBytes: info.Board.MemoryBytes(),
		PCIBusID: info.PCIBusID, PCIeRoot: info.PCIRoot,
		MIG: gpu.MIGUnsupported,
	}
	if info.Board.MIG != nil {
		want.MIG = gpu.MIGDisabled
		if file.GPUs[index].MIG != nil {
			want.MIG = gpu.MIGEnabled
		}
		major, _ := info.Board.CUDAComputeCapability()
		want.MIGSwitchable = major >= 9
		want.Profiles = listed(info)
	}
	checkInstances(t, got, machine)
	checkPointer(t, index, "NUMA node", got.NUMANode, info.NUMANode, info.NUMANode >= 0)
	checkPointer(t, index, "ECC", got.ECCEnabled, true, info.Board.ECC)
	checkPointer(t, index, "NVLink group", got.NVLinkGroup, smallestMinor(machine), len(file.NVSwitches) > 0 && info.Board.NVLink != nil)
	// What the node file does not tell is in the simulator's own suite.
	want.AddressingMode = got.AddressingMode
	got.NUMANode, got.ECCEnabled, got.NVLinkGroup, got.Instances = nil, nil, nil, nil
	if !reflect.DeepEqual(got, want) {
		t.Errorf("GPU %d:\ngot  %+v\nwant %+v", index, got, want)
	}
}

func checkPointer[T comparable](t *testing.T, index int, what string, got *T, want T, known bool) {
	t.Helper()
	switch {
	case known && got == nil:
		t.Errorf("GPU %d: %s is unknown, want %v", index, what, want)
	case known && *got != want:
		t.Errorf("GPU %d: %s is %v, want %v", index, what, *got, want)
	case !known && got != nil:
		t.Errorf("GPU %d: %s is %v, want it unknown", index, what, *got)
	}
}

func smallestMinor(machine *model.Machine) int {
	smallest := machine.GPUs()[0].Minor
	for _, g := range machine.GPUs() {
		if g.Board.NVLink != nil {
			smallest = min(smallest, g.Minor)
		}
	}
	return smallest
}

// Every call about one GPU may fail. The error says which GPU and what was
// asked; the other GPUs are found all the same.
func TestDiscoverNamesTheCallThatFailed(t *testing.T) {
	for function, asked := range map[string]string{
		"nvmlDeviceGetHandleByIndex_v2":                 "open",
		"nvmlDeviceGetMinorNumber":                      "read the minor number",
		"nvmlDeviceGetUUID":                             "read the UUID",
		"nvmlDeviceGetName":                             "read the product name",
		"nvmlDeviceGetPciInfo_v3":                       "read the PCI address",
		"nvmlDeviceGetMemoryInfo":                       "read the memory size",
		"nvmlDeviceGetBrand":                            "",
		"nvmlDeviceGetArchitecture":                     "read the architecture",
		"nvmlDeviceGetCudaComputeCapability":            "read the compute capability",
		"nvmlDeviceGetMigMode":                          "read the MIG mode",
		"nvmlDeviceGetEccMode":                          "",
		"nvmlDeviceGetGpuInstanceProfileInfo":           "read a MIG profile",
		"nvmlDeviceGetGpuInstancePossiblePlacements_v2": "read the placements of MIG profile 19",
		"nvmlDeviceGetFieldValues":                      "",
		"nvmlDeviceGetNvLinkState":                      "",
		"nvmlDeviceGetNvLinkRemoteDeviceType":           "",
	} {
		t.Run(function, func(t *testing.T) {
			file := fixture.File(t, "p4d.24xlarge")
			machine := fixture.Machine(t, file)
			library := fixture.Library(t, machine)
			third := 2
			must(t, machine.Fail(model.Failure{Function: function, Return: gonvml.ERROR_TIMEOUT, GPU: &third}))
			node, unreadable, err := library.Discover()
			must(t, err)
			if asked == "" { // without the fact, the GPU is as good
				if len(node.GPUs) != 8 || len(unreadable) != 0 {
					t.Errorf("got %d GPUs and unreadable %v, want 8 and none", len(node.GPUs), unreadable)
				}
				return
			}
			if len(node.GPUs) != 7 || len(unreadable) != 1 {
				t.Fatalf("got %d GPUs and unreadable %v, want 7 and one", len(node.GPUs), unreadable)
			}
			var failure *nvml.Error
			if !errors.As(unreadable[0], &failure) {
				t.Fatalf("got %v, want an *Error", unreadable[0])
			}
			if failure.Call != asked || failure.Device != "GPU 2" || failure.Return != gonvml.ERROR_TIMEOUT {
				t.Errorf("got %+v, want call %q of GPU 2", failure, asked)
			}
		})
	}
}

// What no claim needs to use a GPU costs it an attribute, unless it is the GPU
// itself that is gone.
func TestDiscoverWithoutOptionalFacts(t *testing.T) {
	for function, tc := range map[string]struct {
		asked   string
		missing func(gpu.GPU) bool
	}{
		"nvmlDeviceGetBrand":       {"read the brand", func(g gpu.GPU) bool { return g.Brand == "" }},
		"nvmlDeviceGetEccMode":     {"read the ECC mode", func(g gpu.GPU) bool { return g.ECCEnabled == nil }},
		"nvmlDeviceGetNvLinkState": {"read NVLink 0", func(g gpu.GPU) bool { return g.NVLinkGroup == nil }},
	} {
		t.Run(function, func(t *testing.T) {
			file := fixture.File(t, "p4d.24xlarge")
			third := 2
			fail := func(with gonvml.Return) (gpu.Node, []error) {
				machine := fixture.Machine(t, file)
				library := fixture.Library(t, machine)
				must(t, machine.Fail(model.Failure{Function: function, Return: with, GPU: &third}))
				node, unreadable, err := library.Discover()
				must(t, err)
				return node, unreadable
			}
			node, unreadable := fail(gonvml.ERROR_UNKNOWN)
			if len(node.GPUs) != 8 || len(unreadable) != 0 {
				t.Fatalf("got %d GPUs and unreadable %v, want 8 and none", len(node.GPUs), unreadable)
			}
			for _, g := range node.GPUs {
				if got, want := tc.missing(g), g.Index == third; got != want {
					t.Errorf("GPU %d: the fact is missing: %t, want %t", g.Index, got, want)
				}
			}
			node, unreadable = fail(gonvml.ERROR_GPU_IS_LOST)
			if len(node.GPUs) != 7 || len(unreadable) != 1 || !errors.Is(unreadable[0], nvml.ErrGPULost) || !strings.Contains(unreadable[0].Error(), tc.asked) {
				t.Errorf("got %d GPUs and unreadable %v, want 7 and the lost one", len(node.GPUs), unreadable)
			}
		})
	}
}

func TestDiscoverFailsWithoutTheDriver(t *testing.T) {
	for function, asked := range map[string]string{
		"nvmlSystemGetDriverVersion":        "read the driver version",
		"nvmlSystemGetCudaDriverVersion_v2": "read the CUDA version",
		"nvmlDeviceGetCount_v2":             "count the GPUs",
	} {
		t.Run(function, func(t *testing.T) {
			file := fixture.File(t, "g6.xlarge")
			machine := fixture.Machine(t, file)
			library := fixture.Library(t, machine)
			must(t, machine.Fail(model.Failure{Function: function, Return: gonvml.ERROR_DRIVER_NOT_LOADED}))
			_, _, err := library.Discover()
			if !errors.Is(err, nvml.ErrDriverNotLoaded) || !strings.HasPrefix(err.Error(), asked+": NVML answered ") {
				t.Errorf("got %v, want an error of %q that is ErrDriverNotLoaded", err, asked)
			}
		})
	}
}

func TestDiscoverLeavesOutWhatAGPUDoesNotHave(t *testing.T) {
	file := fixture.File(t, "p5.48xlarge")
	machine := fixture.Machine(t, file)
	library, err := nvml.New(machine.Library(), fstest.MapFS{}) // no sysfs, either
	must(t, err)
	t.Cleanup(func() { _ = library.Close() })
	for _, function := range []string{
		"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetEccMode", "nvmlDeviceGetMigMode",
		"nvmlDeviceGetNvLinkState", "nvmlDeviceGetAddressingMode",
	} {
		must(t, machine.Fail(model.Failure{Function: function, Return: gonvml.ERROR_NOT_SUPPORTED}))
	}
	node, unreadable, err := library.Discover()
	if err != nil || len(unreadable) > 0 {
		t.Fatal(err, unreadable)
	}
	for _, g := range node.GPUs {
		if g.MemoryBytes != 0 || g.ECCEnabled != nil || g.MIG != gpu.MIGUnsupported || g.NVLinkGroup != nil ||
			g.NUMANode != nil || g.PCIeRoot != "" || g.AddressingMode != "" {
			t.Errorf("a fact that nothing tells is known: %+v", g)
		}
	}
}

// On Ampere a mode is pending until the GPU is reset.
func TestDiscoverReadsMIGModeInForce(t *testing.T) {
	file := fixture.File(t, "p4d.24xlarge")
	machine := fixture.Machine(t, file)
	library := fixture.Library(t, machine)
	expect := func(want gpu.MIGMode) {
		t.Helper()
		node, unreadable, err := library.Discover()
		if err != nil || len(unreadable) > 0 {
			t.Fatal(err, unreadable)
		}
		if got := node.GPUs[0].MIG; got != want {
			t.Errorf("got MIG mode %v, want %v", got, want)
		}
	}
	must(t, machine.SetMIGMode(0, true))
	expect(gpu.MIGDisabled)
	must(t, machine.Reset(0))
	expect(gpu.MIGEnabled)
}

// A board that is newer than the library that spells its names is still a GPU.
func TestDiscoverOffersABoardWithoutAName(t *testing.T) {
	node := discover(t, fixture.File(t, "g6.xlarge"), func(d gonvml.Device) gonvml.Device { return nameless{d} })
	if len(node.GPUs) != 1 || node.GPUs[0].Architecture != "" || node.GPUs[0].ProductName == "" {
		t.Errorf("got %+v, want one GPU with an unknown architecture", node.GPUs)
	}
}

func TestDiscoverFollowsDirectNVLinks(t *testing.T) {
	file := fixture.File(t, "g5.12xlarge") // four GPUs without links of their own
	bus := func(i int) string { return file.GPUs[i].PCIBusID }
	for name, tc := range map[string]struct {
		peers map[string][]string
		lose  []int
		want  []int // index of the GPU that each is grouped with, -1 for none
	}{
		"two bridged pairs":        {peers: map[string][]string{bus(0): {bus(1)}, bus(1): {bus(0)}, bus(2): {bus(3)}, bus(3): {bus(2)}}, want: []int{1, 0, 3, 2}},
		"a peer elsewhere":         {peers: map[string][]string{bus(0): {"0000:ff:00.0"}}, want: []int{-1, -1, -1, -1}},
		"a peer that is lost":      {peers: map[string][]string{bus(0): {bus(1)}, bus(1): {bus(0)}}, lose: []int{1}, want: []int{-1, -1, -1, -1}},
		"a ring over several hops": {peers: map[string][]string{bus(0): {bus(1)}, bus(1): {bus(2)}, bus(2): {bus(3)}, bus(3): {bus(0)}}, want: []int{1, 2, 3, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			node := discover(t, file, func(d gonvml.Device) gonvml.Device { return bridged{d, tc.peers} }, tc.lose...)
			if len(node.GPUs) != len(file.GPUs)-len(tc.lose) {
				t.Fatalf("got %d GPUs, want %d", len(node.GPUs), len(file.GPUs)-len(tc.lose))
			}
			groups := map[int]*int{}
			for _, g := range node.GPUs {
				groups[g.Index] = g.NVLinkGroup
			}
			for index, group := range groups {
				mate := tc.want[index]
				switch {
				case mate < 0 && group != nil:
					t.Errorf("GPU %d is in group %d, want none", index, *group)
				case mate >= 0 && (group == nil || groups[mate] == nil || *group != *groups[mate]):
					t.Errorf("GPU %d is not in the group of GPU %d", index, mate)
				}
			}
		})
	}
}

// discover looks at a machine whose GPUs are all odd, some of them lost.
func discover(t *testing.T, file model.File, odd func(gonvml.Device) gonvml.Device, lost ...int) gpu.Node {
	t.Helper()
	machine := fixture.Machine(t, file)
	for _, index := range lost {
		must(t, machine.Lose(index))
	}
	library, err := nvml.New(oddDriver{Interface: machine.Library(), index: everyGPU, odd: odd}, fixture.Sysfs(file))
	must(t, err)
	t.Cleanup(func() { must(t, library.Close()) })
	node, unreadable, err := library.Discover()
	if err != nil || len(unreadable) != len(lost) {
		t.Fatalf("got error %v and unreadable %v, want %d unreadable", err, unreadable, len(lost))
	}
	return node
}

// nameless is a board that is newer than its names.
type nameless struct{ gonvml.Device }

func (nameless) GetArchitecture() (gonvml.DeviceArchitecture, gonvml.Return) {
	return 4711, gonvml.SUCCESS
}

// bridged is a GPU with direct links to others, by PCI address.
type bridged struct {
	gonvml.Device
	peers map[string][]string
}

func (d bridged) links() []string {
	pci, _ := d.GetPciInfo()
	return d.peers[strings.ToLower(busID(pci)[4:])]
}

func (d bridged) GetNvLinkState(link int) (gonvml.EnableState, gonvml.Return) {
	if link >= len(d.links())+1 {
		return gonvml.FEATURE_DISABLED, gonvml.ERROR_INVALID_ARGUMENT
	}
	if link == 0 { // a link that is not wired comes first
		return gonvml.FEATURE_DISABLED, gonvml.SUCCESS
	}
	return gonvml.FEATURE_ENABLED, gonvml.SUCCESS
}

func (bridged) GetNvLinkRemoteDeviceType(int) (gonvml.IntNvLinkDeviceType, gonvml.Return) {
	return gonvml.NVLINK_DEVICE_TYPE_GPU, gonvml.SUCCESS
}

func (d bridged) GetNvLinkRemotePciInfo(link int) (info gonvml.PciInfo, ret gonvml.Return) {
	for i, c := range []byte("0000" + d.links()[link-1]) {
		info.BusId[i] = int8(c)
	}
	return info, gonvml.SUCCESS
}

func busID(pci gonvml.PciInfo) string {
	var text strings.Builder
	for _, c := range pci.BusId {
		if c == 0 {
			break
		}
		text.WriteByte(byte(c))
	}
	return text.String()
}
