package cdi

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/test/fixture"
)

// sessions are what a Library does with those of NVML.
type sessions interface {
	Library
	Rest() (resting bool, err error)
	Closed(do func() error) error
}

// observed reports calls of NVML that nvcdi makes.
type observed struct {
	sessions
	called func()
}

func (o *observed) Use(do func(nvml.Interface) error) error {
	return o.sessions.Use(func(api nvml.Interface) error { return do(calls{api, o}) })
}

type calls struct {
	nvml.Interface
	by *observed
}

func (c calls) Init() nvml.Return {
	c.by.called()
	return c.Interface.Init()
}

func (c calls) SystemGetDriverVersion() (string, nvml.Return) {
	c.by.called()
	return c.Interface.SystemGetDriverVersion()
}

func (c calls) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	c.by.called()
	return c.Interface.DeviceGetHandleByUUID(uuid)
}

// observedRig has GPUs that a client of NVML holds until it shuts NVML down.
func observedRig(t *testing.T) (rig, *observed) {
	t.Helper()
	file := fixture.File(t, "g5.12xlarge")
	file.Habits.ClientsHold = true
	machine := fixture.Machine(t, file)
	library := &observed{fixture.Library(t, machine), func() {}}
	root := fixture.DriverRoot(t, machine)
	logger, _ := ktesting.NewTestContext(t)
	roots := Roots{Host: "/", Local: root, Hook: "/plugins/nvidia-cdi-hook"}
	return rig{machine, root, NewEdits(library, roots, logger)}, library
}

// Shutting NVML down below nvcdi would leave it with handles that mean nothing.
func TestNVMLStaysOpenWhileEditsAreDerived(t *testing.T) {
	r, library := observedRig(t)
	calls := 0
	library.called = func() {
		calls++
		if resting, err := library.Rest(); resting || err != nil {
			t.Errorf("NVML was shut down during call %d of nvcdi: %t (%v)", calls, resting, err)
		}
	}
	for what, derive := range map[string]func() error{
		"common": func() error { _, err := r.edits.Common(); return err },
		"GPU":    func() error { _, err := r.edits.GPU(r.uuid(1)); return err },
	} {
		calls = 0
		if err := derive(); err != nil || calls == 0 {
			t.Errorf("%s: nvcdi called NVML %d times (%v)", what, calls, err)
		}
	}
}

// A reset fails while this process has the driver open. Claims for other GPUs wait for its
// end, but only where nvcdi has to be asked.
func TestEditsDuringTheResetOfAnotherGPU(t *testing.T) {
	r, library := observedRig(t)
	var calls atomic.Int32
	opened := make(chan struct{}, 1)
	library.called = func() {
		calls.Add(1)
		select {
		case opened <- struct{}{}:
		default:
		}
	}
	if _, err := r.edits.GPU(r.uuid(2)); err != nil {
		t.Fatal(err)
	}
	<-opened
	once := calls.Swap(0)
	const callers = 2
	derived := make(chan error, callers)
	err := library.Closed(func() error {
		for range callers {
			go func() {
				_, err := r.edits.GPU(r.uuid(1))
				derived <- err
			}()
		}
		select {
		case <-opened:
			t.Error("nvcdi opened NVML during the reset")
		case <-time.After(100 * time.Millisecond): // time to do wrong
		}
		known := make(chan error, 1)
		go func() {
			_, err := r.edits.GPU(r.uuid(2))
			known <- err
		}()
		select {
		case err := <-known:
			if err != nil {
				t.Error("edits that are remembered: ", err)
			}
		case <-time.After(10 * time.Second):
			t.Error("edits that are remembered wait for the reset")
		}
		return r.machine.ResetByUUID(t.Context(), r.uuid(0))
	})
	if err != nil {
		t.Error("reset: ", err)
	}
	for range callers {
		if err := <-derived; err != nil {
			t.Error("after the reset: ", err)
		}
	}
	if calls.Load() != once {
		t.Errorf("nvcdi made %d calls for %d callers, want the %d of one", calls.Load(), callers, once)
	}
}
