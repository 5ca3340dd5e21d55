package model

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const twoGPUs = `
name: test
driverVersion: "580.95.05"
cudaDriverVersion: "13.0"
numaNodes:
- {id: 0, cpus: "0-3,8"}
- {id: 1, cpus: "4-7"}
nvSwitches:
- {pciBusID: "0000:c0:00.0", pciDeviceID: "22a3", linksPerGPU: 2}
gpus:
- {board: h100-sxm-80gb, pciBusID: "0000:53:00.0", pciRoot: "pci0000:44", pciBridges: ["0000:44:00.0"], numaNode: 0, minor: 1, moduleID: 2}
- {board: t4-16gb, pciBusID: "0000:64:00.0", pciRoot: "pci0000:55", numaNode: 1, minor: 0, iommuGroup: 3}
`

func parse(t *testing.T, text string) File {
	t.Helper()
	f, err := ParseFile([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func load(t *testing.T, text string) *Machine {
	t.Helper()
	m, err := Load(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestParseFileRefuses(t *testing.T) {
	for _, test := range []struct{ name, old, new, want string }{
		{"an unknown field", "minor: 1", "minnor: 1", "minnor"},
		{"a field twice", "name: test", "name: test\nname: test", "name"},
		{"a name with a slash", "name: test", "name: a/b", "lower case"},
		{"a driver version in words", `"580.95.05"`, "latest", "like 580.95.05"},
		{"a CUDA version of one number", `"13.0"`, `"13"`, "like 13.0"},
		{"a CPU list in words", `"0-3,8"`, `"first four"`, "does not look like"},
		{"a CPU range that runs backwards", `"0-3,8"`, `"3-0"`, "does not look like"},
		{"a NUMA node twice", "{id: 1,", "{id: 0,", "twice"},
		{"an unlisted NUMA node", "numaNode: 1,", "numaNode: 5,", "numaNodes does not list"},
		{"an unknown board", "t4-16gb", "t4", "catalogue does not list"},
		{"a PCI address in words", `"0000:64:00.0"`, `"slot 2"`, "does not look like 0000:53:00.0"},
		{"a PCI device number past the end", `"0000:64:00.0"`, `"0000:64:20.0"`, "00 to 1f"},
		{"a PCI address twice", `"0000:64:00.0"`, `"0000:53:00.0"`, "has too"},
		{"a GPU at the address of a switch", `"0000:64:00.0"`, `"0000:c0:00.0"`, "has too"},
		{"a bridge at the address of a GPU", `["0000:44:00.0"]`, `["0000:53:00.0"]`, "also the address"},
		{"a PCI root without its prefix", `"pci0000:55"`, `"0000:55"`, "does not look like pci0000:44"},
		{"a minor twice", "minor: 0", "minor: 1", "has too"},
		{"a minor past the end", "minor: 0", "minor: 255", "/dev/nvidia253"},
		{"more links than the board has", "linksPerGPU: 2", "linksPerGPU: 19", "has 18"},
		{"a switch without links", "linksPerGPU: 2", "linksPerGPU: 0", "not one"},
		{"a switch address without device ID", `pciDeviceID: "22a3", `, "", "or neither"},
		{"a UUID that is none", "minor: 0,", "minor: 0, uuid: GPU-1,", "hexadecimal"},
		{"an IOMMU group below none", "iommuGroup: 3", "iommuGroup: -2", "use -1"},
		{"the latency of no function", "gpus:", "habits: {latency: {functions: {nvmlFly: 1ms}}}\ngpus:", "declares no function"},
		{"a latency without unit", "gpus:", "habits: {latency: {default: 5}}\ngpus:", "Latency"},
		{"a negative latency", "gpus:", "habits: {latency: {default: -5ms}}\ngpus:", "habits.latency: latency -5ms"},
		{"a negative contention", "gpus:", "habits: {latency: {contention: -5ms}}\ngpus:", "contention -5ms"},
		{"an unknown habit", "gpus:", "habits: {sleep: true}\ngpus:", "sleep"},
		{"a presence that is none", "minor: 0,", "minor: 0, presence: late,", `presence "late"`},
		{"a fabric that is none", "gpus:", "habits: {fabric: done}\ngpus:", `fabric "done"`},
		{"device nodes of nobody", "gpus:", "habits: {deviceNodes: none}\ngpus:", `deviceNodes "none"`},
		{"a driver in words", "gpus:", "habits: {driver: {module: latest}}\ngpus:", `driver.module "latest"`},
		{"a negative module", "moduleID: 2", "moduleID: -2", "negative"},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(twoGPUs, test.old, test.new, 1)
			if text == twoGPUs {
				t.Fatalf("the description does not contain %q", test.old)
			}
			_, err := ParseFile([]byte(text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one that mentions %q", err, test.want)
			}
		})
	}
}

func TestLoadValidates(t *testing.T) {
	f := parse(t, twoGPUs)
	f.DriverVersion = ""
	if _, err := Load(f); err == nil {
		t.Error("a description without driver version was loaded")
	}
}

func TestParsePCIAddress(t *testing.T) {
	for text, want := range map[string]string{
		"0000:53:00.0":     "0000:53:00.0",
		"00000000:CA:1F.7": "0000:ca:1f.7",
		"0001:00:1e.0":     "0001:00:1e.0",
		"53:00.0":          "0000:53:00.0",
		"":                 "",
		"0000:53:00":       "",
		"0000:53:00.8":     "",
		"0000:53:20.0":     "",
		"0000:53:00.0 ":    "",
	} {
		got, err := ParsePCIAddress(text)
		if want == "" {
			if err == nil {
				t.Errorf("%q was read as %s", text, got)
			}
			continue
		}
		if err != nil || got.String() != want {
			t.Errorf("%q was read as %s (%v), want %s", text, got, err, want)
		}
	}
}

func FuzzParsePCIAddress(f *testing.F) {
	for _, seed := range []string{"0000:53:00.0", "00000000:CA:1F.7", "53:00.0", ":", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		address, err := ParsePCIAddress(text)
		if err != nil {
			return
		}
		for _, form := range []string{address.String(), address.nvmlBusID()} {
			// A domain of five digits and more has no form with four.
			if again, err := ParsePCIAddress(form); address.Domain <= 0xffff && (err != nil || again != address) {
				t.Errorf("%q became %q, which reads as %v (%v)", text, form, again, err)
			}
		}
	})
}

func TestParseCPUList(t *testing.T) {
	got, err := ParseCPUList("0-2,5,7-8")
	if err != nil || !slices.Equal(got, []int{0, 1, 2, 5, 7, 8}) {
		t.Errorf("got %v (%v)", got, err)
	}
	for _, text := range []string{"", "-", "1-", "-1", "a", "0-8192", "1,,2"} {
		if got, err := ParseCPUList(text); err == nil {
			t.Errorf("%q was read as %v", text, got)
		}
	}
}

// TestIdentitiesAreStable holds what tests and golden files elsewhere rely on:
// the same description gives the same UUIDs, on every machine and in every release.
func TestIdentitiesAreStable(t *testing.T) {
	var got []string
	for _, g := range load(t, twoGPUs).GPUs() {
		got = append(got, g.UUID, g.Serial)
	}
	want := []string{
		"GPU-e22ec88b-0556-4892-867c-ae5ef71bd53a", "SIM8302BF8C5034", "GPU-5a48af72-3ac5-4f1c-a136-84847dc710ab", "SIM698002B61A99",
	}
	if !slices.Equal(got, want) {
		t.Errorf("identities are %q, want %q", got, want)
	}
	other := load(t, strings.Replace(twoGPUs, "name: test", "name: other", 1))
	if other.GPUs()[0].UUID == got[0] {
		t.Error("two machines have the same UUID")
	}
	chosen := "GPU-01234567-89ab-4def-8123-456789abcdef"
	named := load(t, strings.Replace(twoGPUs, "minor: 0,", "minor: 0, uuid: "+chosen+",", 1))
	if named.GPUs()[1].UUID != chosen {
		t.Errorf("UUID is %s, want the one of the description", named.GPUs()[1].UUID)
	}
}

func TestIOMMUGroupDefaultsToNone(t *testing.T) {
	gpus := parse(t, twoGPUs).GPUs
	if gpus[0].IOMMUGroup != -1 || gpus[1].IOMMUGroup != 3 {
		t.Errorf("IOMMU groups are %d and %d, want -1 and 3", gpus[0].IOMMUGroup, gpus[1].IOMMUGroup)
	}
}

func TestMachineKeepsItsDescription(t *testing.T) {
	f := parse(t, twoGPUs)
	m, err := Load(f)
	if err != nil {
		t.Fatal(err)
	}
	want := parse(t, twoGPUs)
	f.GPUs[0].Minor, f.NVSwitches[0].PCIBusID = 99, ""
	if !reflect.DeepEqual(m.File(), want) {
		t.Errorf("the machine's description is %+v, want %+v", m.File(), want)
	}
}

func TestFabricAtTheStart(t *testing.T) {
	late := strings.Replace(twoGPUs, "gpus:", "habits: {fabric: inProgress}\ngpus:", 1)
	m := load(t, late)
	if _, err := m.OpenContexts(Process{PID: 1}); err == nil || !strings.HasPrefix(err.Error(), "CUDA_ERROR_SYSTEM_NOT_READY") {
		t.Errorf("CUDA before the fabric manager: %v", err)
	}
	if err := m.SetFabric(FabricCompleted); err != nil {
		t.Fatal(err)
	}
	if _, err := m.OpenContexts(Process{PID: 1}); err != nil {
		t.Error(err)
	}
	_, err := ParseFile([]byte(strings.Replace(late, "nvSwitches:\n- {pciBusID: \"0000:c0:00.0\", pciDeviceID: \"22a3\", linksPerGPU: 2}\n", "", 1)))
	if err == nil || !strings.Contains(err.Error(), "without nvSwitches") {
		t.Errorf("a fabric without switches: %v", err)
	}
}

func TestPresenceAtTheStart(t *testing.T) {
	m := load(t, strings.NewReplacer("minor: 1,", "minor: 1, presence: absent,", "minor: 0,", "minor: 0, presence: lost,").Replace(twoGPUs))
	s := initialised(t, m)
	if count, ret := s.DeviceGetCount(); count != 1 || ret != nvml.SUCCESS {
		t.Errorf("there are %d GPUs (%v), want the lost one alone", count, ret)
	}
	if _, ret := s.DeviceGetHandleByIndex(0); ret != nvml.ERROR_GPU_IS_LOST {
		t.Errorf("the lost GPU answers %v", ret)
	}
	if err := errors.Join(m.Attach(0), m.Return(1)); err != nil {
		t.Fatal(err)
	}
	for index, want := range m.GPUs() {
		if id, _ := handle(t, s, index).GetUUID(); id != want.UUID {
			t.Errorf("GPU %d is %s, want %s", index, id, want.UUID)
		}
	}
	if contexts, err := m.OpenContexts(Process{PID: 1}); err != nil || m.Detach(0) == nil {
		t.Errorf("a GPU was detached under a process (%v)", err)
	} else {
		contexts.Close()
	}
}

func TestDriverThatIsReplaced(t *testing.T) {
	m := load(t, strings.Replace(twoGPUs, "gpus:", "habits: {driver: {module: none}}\ngpus:", 1))
	begins := func(library string, want nvml.Return) *Session {
		t.Helper()
		s := m.NewSession(LibraryVersion(library))
		t.Cleanup(s.Close)
		if ret := s.Init(); ret != want {
			t.Errorf("Init with library %q returned %v, want %v", library, ret, want)
		}
		return s
	}
	set := func(d Driver) {
		t.Helper()
		if err := m.SetDriver(d); err != nil {
			t.Fatal(err)
		}
	}
	begins("580.95.05", nvml.ERROR_DRIVER_NOT_LOADED)
	set(Driver{Module: "580.95.05"})
	begins("590.44.01", nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	begins("", nvml.SUCCESS).Close() // its file is not named for a version
	s := begins("580.95.05", nvml.SUCCESS)
	if ret := s.devices[1].SetPersistenceMode(nvml.FEATURE_ENABLED); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if err := m.SetDriver(Driver{Module: "590.44.01"}); err == nil || !strings.Contains(err.Error(), "is in use by 1 processes") {
		t.Errorf("a module was replaced under a client: %v", err)
	}
	set(Driver{Library: "590.44.01"})
	if ret := s.Shutdown(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := s.Init(); ret != nvml.SUCCESS {
		t.Errorf("the client that loaded the old library gets %v", ret)
	}
	s.Close()
	set(Driver{Module: "590.44.01"})
	s = begins("590.44.01", nvml.SUCCESS)
	if version, _ := s.SystemGetDriverVersion(); version != "590.44.01" {
		t.Errorf("the driver is %s", version)
	}
	if mode, ret := s.devices[1].GetPersistenceMode(); mode != nvml.FEATURE_DISABLED {
		t.Errorf("the persistence mode outlives the module: %v (%v)", mode, ret)
	}
}

// A metrics exporter holds handles. What of this others notice is the habit's to say.
func TestClientsThatHoldGPUs(t *testing.T) {
	ampere := strings.Replace(strings.Replace(twoGPUs, "h100-sxm-80gb", "a100-sxm-40gb", 1), "linksPerGPU: 2", "linksPerGPU: 1", 1)
	for _, test := range []struct {
		name, text string
		held       bool
		activation nvml.Return
		pending    int
	}{
		{"before Hopper", ampere, true, nvml.ERROR_IN_USE, nvml.DEVICE_MIG_ENABLE},
		{"from Hopper on", twoGPUs, true, nvml.SUCCESS, nvml.DEVICE_MIG_ENABLE},
		{"without the habit", ampere, false, nvml.ERROR_RESET_REQUIRED, nvml.DEVICE_MIG_ENABLE},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := test.text
			if test.held {
				text = strings.Replace(text, "gpus:", "habits: {clientsHold: true}\ngpus:", 1)
			}
			m := load(t, text)
			admin, exporter := initialised(t, m), initialised(t, m)
			d := handle(t, admin, 0)
			if state, _ := m.State(); state.GPUs[0].Clients != 1 || state.GPUs[1].Clients != 0 {
				t.Errorf("clients are %d and %d", state.GPUs[0].Clients, state.GPUs[1].Clients)
			}
			handle(t, exporter, 0)
			activation, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
			if ret != nvml.SUCCESS || activation != test.activation {
				t.Errorf("SetMigMode returned %v and %v, want %v", activation, ret, test.activation)
			}
			if _, pending, _ := d.GetMigMode(); pending != test.pending {
				t.Errorf("the pending mode is %d, want %d", pending, test.pending)
			}
			_ = admin.Shutdown()
			if err := m.Reset(0); (err != nil) != test.held {
				t.Errorf("a reset under an exporter: %v", err)
			}
			if test.held && m.Detach(0) == nil {
				t.Error("a GPU was detached under an exporter")
			}
			_ = exporter.Shutdown()
			if err := m.Reset(0); err != nil {
				t.Errorf("a reset after the exporter: %v", err)
			}
		})
	}
}
