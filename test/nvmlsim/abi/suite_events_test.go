package abi_test

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// longWait is the time-out of waits that have to be woken, in milliseconds.
const longWait = 60_000

// eventSet creates a set that is registered for a GPU's XIDs.
func eventSet(t *testing.T, lib nvml.Interface, gpus ...int) nvml.EventSet {
	t.Helper()
	set, ret := lib.EventSetCreate()
	if ret != nvml.SUCCESS {
		t.Fatalf("create an event set: %v", ret)
	}
	for _, gpu := range gpus {
		if ret := device(t, lib, gpu).RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
			t.Fatalf("register for XIDs of GPU %d: %v", gpu, ret)
		}
	}
	return set
}

func (s suite) eventRegistration(t *testing.T) {
	s.each(t, func(t *testing.T, lib nvml.Interface, gpu int, d nvml.Device) {
		supported, ret := d.GetSupportedEventTypes()
		returns(t, "GetSupportedEventTypes", nvml.SUCCESS, ret)
		ecc := uint64(nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError)
		if supported&nvml.EventTypeXidCriticalError == 0 || (supported&ecc == ecc) != s.board(t, gpu).ECC {
			t.Errorf("GPU %d supports events %#x", gpu, supported)
		}
		set := eventSet(t, lib)
		returns(t, "RegisterEvents", nvml.SUCCESS, d.RegisterEvents(supported, set))
		unsupported := uint64(nvml.EventTypeAll) &^ supported
		returns(t, "RegisterEvents of unsupported types", nvml.ERROR_NOT_SUPPORTED, d.RegisterEvents(unsupported|nvml.EventTypeXidCriticalError, set))
		returns(t, "RegisterEvents of unknown types", nvml.ERROR_INVALID_ARGUMENT, d.RegisterEvents(1<<40, set))
		returns(t, "Free", nvml.SUCCESS, set.Free())
	})
}

func (s suite) eventDelivery(t *testing.T) {
	lib := initialised(t)
	last := len(s.node.GPUs) - 1
	act(t, s.control.Inject(model.XID(last, 31)))
	set := eventSet(t, lib, last)
	refuses(t, "an event from before the registration", nvml.ERROR_TIMEOUT)(set.Wait(0))

	act(t, s.control.Inject(model.XID(last, 48)))
	act(t, s.control.Inject(model.Event{GPU: last, Type: nvml.EventTypeXidCriticalError, Data: 94, GPUInstanceID: 3, ComputeInstanceID: 1}))
	for _, want := range []nvml.EventData{
		{EventData: 48, GpuInstanceId: model.WholeGPU, ComputeInstanceId: model.WholeGPU},
		{EventData: 94, GpuInstanceId: 3, ComputeInstanceId: 1},
	} {
		got, ret := set.Wait(longWait)
		returns(t, "Wait", nvml.SUCCESS, ret)
		if id := uuid(t, got.Device); id != uuid(t, device(t, lib, last)) {
			t.Errorf("the event is about GPU %s", id)
		}
		want.EventType = nvml.EventTypeXidCriticalError
		got.Device = nil
		if got != want {
			t.Errorf("the event is %+v, want %+v", got, want)
		}
	}
	refuses(t, "a third event", nvml.ERROR_TIMEOUT)(set.Wait(0))
	if supported, _ := device(t, lib, last).GetSupportedEventTypes(); supported&nvml.EventTypeDoubleBitEccError != 0 {
		act(t, s.control.Inject(model.Event{GPU: last, Type: nvml.EventTypeDoubleBitEccError, GPUInstanceID: model.WholeGPU, ComputeInstanceID: model.WholeGPU}))
		refuses(t, "an event of a type not asked for", nvml.ERROR_TIMEOUT)(set.Wait(0))
	}
	returns(t, "Free", nvml.SUCCESS, set.Free())
}

// waited is what a wait in another goroutine came back with.
type waited struct {
	data nvml.EventData
	ret  nvml.Return
}

// wait waits in a goroutine that is under way when wait returns.
func wait(set nvml.EventSet) <-chan waited {
	result := make(chan waited, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		data, ret := set.Wait(longWait)
		result <- waited{data, ret}
	}()
	<-started
	return result
}

// woken returns what a wait came back with, well before its time-out.
func woken(t *testing.T, result <-chan waited) waited {
	t.Helper()
	select {
	case w := <-result:
		return w
	case <-time.After(patience):
		t.Fatal("the wait was not woken")
		return waited{}
	}
}

func (s suite) waitIsWoken(t *testing.T) {
	lib := initialised(t)
	set := eventSet(t, lib, 0)
	for xid := range uint64(20) {
		result := wait(set)
		// Other calls go on while one waits.
		uuid(t, device(t, lib, 0))
		act(t, s.control.Inject(model.XID(0, xid+1)))
		if w := woken(t, result); w.ret != nvml.SUCCESS || w.data.EventData != xid+1 {
			t.Errorf("the wait returned %+v, want XID %d", w, xid+1)
		}
	}
	returns(t, "Free", nvml.SUCCESS, set.Free())
}

func (suite) shutdownDuringWait(t *testing.T) {
	for range 10 {
		lib := library()
		returns(t, "Init", nvml.SUCCESS, lib.Init())
		result := wait(eventSet(t, lib, 0))
		returns(t, "Shutdown", nvml.SUCCESS, lib.Shutdown())
		returns(t, "a wait during which the library was shut down", nvml.ERROR_UNINITIALIZED, woken(t, result).ret)
	}
}

func (s suite) lostDuringWait(t *testing.T) {
	lib := initialised(t)
	set := eventSet(t, lib, 0)
	result := wait(set)
	act(t, s.control.Lose(0))
	returns(t, "a wait during which a GPU was lost", nvml.ERROR_GPU_IS_LOST, woken(t, result).ret)
	refuses(t, "a wait on a lost GPU", nvml.ERROR_GPU_IS_LOST)(set.Wait(longWait))
	act(t, s.control.Return(0))
	refuses(t, "a wait on a returned GPU", nvml.ERROR_TIMEOUT)(set.Wait(0))
	act(t, s.control.Inject(model.XID(0, 13)))
	if w := woken(t, wait(set)); w.ret != nvml.SUCCESS || w.data.EventData != 13 {
		t.Errorf("a wait after the GPU returned gave %+v, want XID 13", w)
	}
	returns(t, "Free", nvml.SUCCESS, set.Free())
}
