package model

import (
	"errors"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const twoGPUs = `
name: test
driverVersion: "580.95.05"
cudaDriverVersion: "13.0"
nvSwitches:
- {pciBusID: "0000:c0:00.0", pciDeviceID: "22a3", linksPerGPU: 2}
gpus:
- {board: h100-sxm-80gb, pciBusID: "0000:53:00.0", pciRoot: "pci0000:44", pciBridges: ["0000:44:00.0"], numaNode: 0, minor: 1}
- {board: t4-16gb, pciBusID: "0000:64:00.0", pciRoot: "pci0000:55", numaNode: 1, minor: 0}
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
		{"an unknown board", "t4-16gb", "t4", "catalogue does not list"},
		{"a PCI address in words", `"0000:64:00.0"`, `"slot 2"`, "does not look like 0000:53:00.0"},
		{"a PCI address twice", `"0000:64:00.0"`, `"0000:53:00.0"`, "has too"},
		{"a minor twice", "minor: 0", "minor: 1", "has too"},
		{"more links than the board has", "linksPerGPU: 2", "linksPerGPU: 19", "has 18"},
		{"the latency of no function", "gpus:", "habits: {latency: {functions: {nvmlFly: 1ms}}}\ngpus:", "models no function"},
		{"an unknown habit", "gpus:", "habits: {sleep: true}\ngpus:", "sleep"},
		{"a driver in words", "gpus:", "habits: {driver: {module: latest}}\ngpus:", `driver.module "latest"`},
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
	m := load(t, strings.NewReplacer("minor: 1}", "minor: 1, presence: absent}", "minor: 0}", "minor: 0, presence: lost}").Replace(twoGPUs))
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
