package abi_test

import (
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// suite holds the machine that node describes, and its library, to what clients rely on.
type suite struct {
	node    model.File
	control model.Control
}

// TestConformance runs the suite on every ready-made machine. Each test leaves the machine as it found it.
func TestConformance(t *testing.T) {
	for _, name := range nodes.Names() {
		t.Run(name, func(t *testing.T) {
			node, err := nodes.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			suite{node: node, control: start(t, name).use().control()}.run(t)
		})
	}
}

func (s suite) run(t *testing.T) {
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
		{"compute instances", s.computeInstances},
		{"MIG devices", s.migDevices},
		{"MIG device indices", s.migIndices},
		{"MIG instances in use", s.instancesInUse},
		{"MIG instances of a lost GPU", s.instancesOfLostGPU},
		{"MIG failures", s.migFailures},
		{"use", s.use},
		{"sensors", s.sensors},
		{"use of MIG instances", s.useOfInstances},
		{"counters of MIG instances", s.counters},
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
	act(t, s.control.Clear())
	for _, g := range s.state(t).GPUs {
		if g.Lost {
			act(t, s.control.Return(g.Index))
		}
		if g.Absent {
			act(t, s.control.Attach(g.Index))
		}
	}
	s.restoreMIG(t)
	s.restoreUse(t)
	lib := initialised(t)
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
	lib := initialised(t)
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
