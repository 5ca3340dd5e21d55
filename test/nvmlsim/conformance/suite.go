package conformance

import (
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// suite is what every test of the suite works with.
type suite struct {
	lib     func() nvml.Interface
	node    model.File
	control model.Control
}

// Run runs the suite. lib returns a client that is not initialised; clients may
// share one process, and with it one count of initialisations, as clients of a C
// library do, but the library must stay callable after its last shutdown. node
// describes the machine behind lib, with every GPU visible, and control acts on
// it. The suite leaves the machine as it found it.
func Run(t *testing.T, lib func() nvml.Interface, node model.File, control model.Control) {
	s := suite{lib: lib, node: node, control: control}
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"lifecycle", s.lifecycle},
		{"uninitialised", s.uninitialised},
		{"lookup", s.lookup},
		{"identity", s.identity},
		{"modes", s.modes},
		{"MIG profiles", s.migProfiles},
		{"static MIG instances", s.staticInstances},
		{"MIG mode switches", s.migModeSwitches},
		{"MIG mode in use", s.migModeInUse},
		{"GPU instances", s.gpuInstances},
		{"GPU instances that do not fit", s.instancesThatDoNotFit},
		{"compute instances", s.computeInstances},
		{"MIG devices", s.migDevices},
		{"MIG device indices", s.migIndices},
		{"MIG instances in use", s.instancesInUse},
		{"MIG instances of a lost GPU", s.instancesOfLostGPU},
		{"MIG failures", s.migFailures},
		{"use", s.use},
		{"use of MIG instances", s.useOfInstances},
		{"counters of MIG instances", s.counters},
		{"go-nvlib MIG devices", s.nvlibMIGDevices},
		{"NVLink", s.nvLink},
		{"fabric", s.fabric},
		{"late fabric manager", s.lateFabric},
		{"event registration", s.eventRegistration},
		{"event delivery", s.eventDelivery},
		{"waits are woken", s.waitIsWoken},
		{"shutdown during a wait", s.shutdownDuringWait},
		{"lost GPU during a wait", s.lostDuringWait},
		{"lost GPU", s.lostGPU},
		{"GPUs that come and go", s.attachments},
		{"latency", s.latency},
		{"failures", s.failures},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Cleanup(func() { s.restore(t) })
			test.run(t)
		})
	}
}

// restore undoes what a test did to the machine.
func (s suite) restore(t *testing.T) {
	if err := s.control.Clear(); err != nil {
		t.Errorf("clear the faults: %v", err)
	}
	state := s.state(t)
	for _, g := range state.GPUs {
		if g.Lost {
			if err := s.control.Return(g.Index); err != nil {
				t.Errorf("return GPU %d: %v", g.Index, err)
			}
		}
		if g.Absent {
			if err := s.control.Attach(g.Index); err != nil {
				t.Errorf("attach GPU %d: %v", g.Index, err)
			}
		}
	}
	s.restoreMIG(t)
	s.restoreUse(t)
	lib := s.open(t)
	for i := range s.node.GPUs {
		d := device(t, lib, i)
		returns(t, "restore the compute mode", nvml.SUCCESS, d.SetComputeMode(nvml.COMPUTEMODE_DEFAULT))
		returns(t, "restore the persistence mode", nvml.SUCCESS, d.SetPersistenceMode(nvml.FEATURE_DISABLED))
	}
}

func (s suite) state(t *testing.T) model.State {
	t.Helper()
	state, err := s.control.State()
	if err != nil {
		t.Fatalf("read the state of the machine: %v", err)
	}
	return state
}

// client returns a client that a test initialises itself.
func (s suite) client(t *testing.T) nvml.Interface {
	lib := s.lib()
	if closer, ok := lib.(interface{ Close() }); ok {
		t.Cleanup(closer.Close)
	}
	return lib
}

// open returns an initialised client that is shut down at the end of the test.
func (s suite) open(t *testing.T) nvml.Interface {
	t.Helper()
	lib := s.client(t)
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("initialise the library: %v", ret)
	}
	t.Cleanup(func() {
		if ret := lib.Shutdown(); ret != nvml.SUCCESS {
			t.Errorf("shut the library down: %v", ret)
		}
	})
	return lib
}

func (s suite) board(t *testing.T, gpu int) catalog.Board {
	t.Helper()
	board, found := catalog.BoardByName(s.node.GPUs[gpu].Board)
	if !found {
		t.Fatalf("the catalogue does not list board %q", s.node.GPUs[gpu].Board)
	}
	return board
}

// each runs a test on every GPU of the machine.
func (s suite) each(t *testing.T, test func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device)) {
	t.Helper()
	lib := s.open(t)
	for i := range s.node.GPUs {
		test(t, lib, i, device(t, lib, i))
	}
}

func device(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	d, ret := lib.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatalf("get the handle of GPU %d: %v", index, ret)
	}
	return d
}

func uuid(t *testing.T, d nvml.Device) string {
	t.Helper()
	id, ret := d.GetUUID()
	if ret != nvml.SUCCESS {
		t.Fatalf("get the UUID of a GPU: %v", ret)
	}
	return id
}

// gives checks a call that has to succeed with a value.
func gives[T any](t *testing.T, what string, want T) func(T, nvml.Return) {
	t.Helper()
	return func(got T, ret nvml.Return) {
		t.Helper()
		if ret != nvml.SUCCESS {
			t.Errorf("%s returned %v, want success", what, ret)
			return
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %v, want %v", what, got, want)
		}
	}
}

// refuses checks a call that has to return an error.
func refuses(t *testing.T, what string, want nvml.Return) func(any, nvml.Return) {
	t.Helper()
	return func(_ any, got nvml.Return) {
		t.Helper()
		returns(t, what, want, got)
	}
}

func returns(t *testing.T, what string, want, got nvml.Return) {
	t.Helper()
	if got != want {
		t.Errorf("%s returned %d (%v), want %d", what, got, got, want)
	}
}

func act(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// text is a C string in a field of a C struct.
func text(field []int8) string {
	var b []byte
	for _, c := range field {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}
