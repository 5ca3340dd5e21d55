package model

import (
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	nvlibdevice "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

func initialised(t *testing.T, m *Machine, options ...SessionOption) *Session {
	t.Helper()
	s := m.NewSession(options...)
	t.Cleanup(s.Close)
	if ret := s.Init(); ret != nvml.SUCCESS {
		t.Fatalf("Init returned %v", ret)
	}
	return s
}

func handle(t *testing.T, s *Session, index int) nvml.Device {
	t.Helper()
	d, ret := s.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatalf("GPU %d: %v", index, ret)
	}
	return d
}

// callAll calls every method of a value with zero arguments and passes what each
// returned last, if that is a return code.
func callAll(t *testing.T, target any, interfaceType reflect.Type, check func(method string, ret nvml.Return)) {
	t.Helper()
	value := reflect.ValueOf(target)
	for i := range interfaceType.NumMethod() {
		method := interfaceType.Method(i)
		var arguments []reflect.Value
		for j := range method.Type.NumIn() {
			arguments = append(arguments, reflect.Zero(method.Type.In(j)))
		}
		results := value.MethodByName(method.Name).Call(arguments)
		if len(results) == 0 {
			continue
		}
		if ret, ok := results[len(results)-1].Interface().(nvml.Return); ok {
			check(method.Name, ret)
		}
	}
}

func TestEveryMethodBeforeInit(t *testing.T) {
	// Initialise and end the session again, to have handles.
	s := initialised(t, load(t, twoGPUs))
	d := handle(t, s, 0)
	set, _ := s.EventSetCreate()
	_ = s.Shutdown()
	want := func(kind string) func(string, nvml.Return) {
		return func(method string, ret nvml.Return) {
			if ret != nvml.ERROR_UNINITIALIZED && method != "ErrorString" {
				t.Errorf("%s.%s returned %v before Init", kind, method, ret)
			}
		}
	}
	callAll(t, d, reflect.TypeFor[nvml.Device](), want("Device"))
	callAll(t, set, reflect.TypeFor[nvml.EventSet](), want("EventSet"))
	callAll(t, s, reflect.TypeFor[nvml.Interface](), func(method string, ret nvml.Return) {
		if !strings.HasPrefix(method, "Init") {
			want("Interface")(method, ret)
			return
		}
		if ret != nvml.SUCCESS {
			t.Errorf("%s returned %v", method, ret)
		}
		_ = s.Shutdown()
	})
}

// TestEveryMethodAnswers calls everything with zero arguments: nothing may panic
// or answer with something that a working machine has no reason for.
func TestEveryMethodAnswers(t *testing.T) {
	m := load(t, twoGPUs)
	for index := range 2 {
		s := initialised(t, m)
		allowed := func(method string, ret nvml.Return) {
			switch ret {
			case nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND:
			default:
				t.Errorf("%s returned %v", method, ret)
			}
		}
		callAll(t, handle(t, s, index), reflect.TypeFor[nvml.Device](), allowed)
		set, _ := s.EventSetCreate()
		callAll(t, set, reflect.TypeFor[nvml.EventSet](), func(method string, ret nvml.Return) {
			if method != "Wait" {
				allowed(method, ret)
			}
		})
		callAll(t, s, reflect.TypeFor[nvml.Interface](), func(method string, ret nvml.Return) {
			if method == "Shutdown" {
				_ = s.Init()
				return
			}
			allowed(method, ret)
		})
	}
}

func TestVisibleMinors(t *testing.T) {
	m := load(t, twoGPUs)
	s := initialised(t, m, VisibleMinors(0, 7))
	if count, ret := s.DeviceGetCount(); count != 1 || ret != nvml.SUCCESS {
		t.Fatalf("the session sees %d GPUs (%v), want 1", count, ret)
	}
	d := handle(t, s, 0)
	if minor, _ := d.GetMinorNumber(); minor != 0 {
		t.Errorf("the session sees minor %d, want 0", minor)
	}
	if index, _ := d.GetIndex(); index != 0 {
		t.Errorf("the only GPU of the session has index %d", index)
	}
	if _, ret := s.DeviceGetHandleByUUID(m.GPUs()[0].UUID); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("a hidden GPU was found by UUID: %v", ret)
	}
	if _, ret := s.DeviceGetHandleByPciBusId("0000:53:00.0"); ret != nvml.ERROR_NOT_FOUND {
		t.Errorf("a hidden GPU was found by PCI address: %v", ret)
	}
	// Control names GPUs by their index on the machine.
	set, _ := s.EventSetCreate()
	if ret := d.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		t.Fatalf("RegisterEvents returned %v", ret)
	}
	if err := m.Inject(XID(1, 48)); err != nil {
		t.Fatal(err)
	}
	if data, ret := set.Wait(0); ret != nvml.SUCCESS || data.Device != d {
		t.Errorf("got %+v (%v), want an event of the visible GPU", data, ret)
	}
	none := initialised(t, m, VisibleMinors())
	if count, _ := none.DeviceGetCount(); count != 0 {
		t.Errorf("a session without devices sees %d GPUs", count)
	}
}

func TestInitialisationsBelongToASession(t *testing.T) {
	m := load(t, twoGPUs)
	a, b := initialised(t, m), m.NewSession()
	t.Cleanup(b.Close)
	if _, ret := b.DeviceGetCount(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("a session that nobody initialised returned %v", ret)
	}
	if ret := b.Shutdown(); ret != nvml.ERROR_UNINITIALIZED {
		t.Errorf("its Shutdown returned %v", ret)
	}
	if _, ret := a.DeviceGetCount(); ret != nvml.SUCCESS {
		t.Errorf("the other session returned %v", ret)
	}
}

func TestHandlesOfOtherSessions(t *testing.T) {
	m := load(t, twoGPUs)
	a, b := initialised(t, m), initialised(t, m)
	foreign, _ := b.EventSetCreate()
	if ret := handle(t, a, 0).RegisterEvents(nvml.EventTypeXidCriticalError, foreign); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("registering with a foreign set returned %v", ret)
	}
	if _, ret := handle(t, a, 0).GetTopologyCommonAncestor(handle(t, b, 1)); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("the topology towards a foreign handle returned %v", ret)
	}
	if _, ret := handle(t, a, 0).GetTopologyCommonAncestor(nil); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("the topology towards nothing returned %v", ret)
	}
	freed, _ := a.EventSetCreate()
	_ = freed.Free()
	if ret := handle(t, a, 0).RegisterEvents(nvml.EventTypeXidCriticalError, freed); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("registering with a freed set returned %v", ret)
	}
	if ret := freed.Free(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("freeing a set twice returned %v", ret)
	}
}

func TestWrappedHandles(t *testing.T) {
	s := initialised(t, load(t, twoGPUs))
	wrapped, err := nvlibdevice.New(s).NewDevice(handle(t, s, 1))
	if err != nil {
		t.Fatal(err)
	}
	if level, ret := handle(t, s, 0).GetTopologyCommonAncestor(wrapped); ret != nvml.SUCCESS || level != nvml.TOPOLOGY_SYSTEM {
		t.Errorf("the topology towards a handle in a struct is %d (%v)", level, ret)
	}
}

func TestCloseWakesAndEnds(t *testing.T) {
	m := load(t, twoGPUs)
	s := initialised(t, m)
	d := handle(t, s, 0)
	set, _ := s.EventSetCreate()
	if err := m.SetLatency("nvmlDeviceGetUUID", time.Hour); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for _, call := range []func() nvml.Return{
		func() nvml.Return { _, ret := set.Wait(1 << 30); return ret },
		func() nvml.Return { _, ret := d.GetUUID(); return ret },
	} {
		calls.Go(func() {
			if ret := call(); ret != nvml.ERROR_UNINITIALIZED {
				t.Errorf("a call during which the session was closed returned %v", ret)
			}
		})
	}
	s.Close()
	calls.Wait()
	s.Close()
	if ret := s.Init(); ret != nvml.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("Init of a closed session returned %v", ret)
	}
	if state, _ := m.State(); state.Sessions != 0 {
		t.Errorf("%d sessions are left", state.Sessions)
	}
}

func TestEventQueueIsBounded(t *testing.T) {
	m := load(t, twoGPUs)
	s := initialised(t, m)
	set, _ := s.EventSetCreate()
	if ret := handle(t, s, 0).RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		t.Fatalf("RegisterEvents returned %v", ret)
	}
	for xid := range uint64(maxQueued + 5) {
		if err := m.Inject(XID(0, xid)); err != nil {
			t.Fatal(err)
		}
	}
	if data, _ := set.Wait(0); data.EventData != 5 {
		t.Errorf("the oldest event kept is %d, want 5", data.EventData)
	}
}

func TestBelowRoot(t *testing.T) {
	for _, test := range []struct {
		name string
		a, b []string
		want nvml.GpuTopologyLevel
	}{
		{"both on the root's bus", nil, nil, nvml.TOPOLOGY_HOSTBRIDGE},
		{"two root ports", []string{"r0"}, []string{"r1"}, nvml.TOPOLOGY_HOSTBRIDGE},
		{"one bridge above both", []string{"r0"}, []string{"r0"}, nvml.TOPOLOGY_SINGLE},
		{"two ports of one switch", []string{"r0", "up", "d0"}, []string{"r0", "up", "d1"}, nvml.TOPOLOGY_SINGLE},
		{"two switches below one port", []string{"r0", "u0", "d0"}, []string{"r0", "u1", "d0"}, nvml.TOPOLOGY_MULTIPLE},
	} {
		if got := belowRoot(test.a, test.b); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

// TestConcurrentUse is for the race detector: clients come and go while others
// call, wait, and are failed.
func TestConcurrentUse(t *testing.T) {
	m := load(t, twoGPUs)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				useOnce(m)
			}
		})
	}
	all.Go(func() {
		for i := range uint64(200) {
			_ = m.Inject(XID(int(i%2), i))
			_ = m.Fail(Failure{Function: "nvmlDeviceGetUUID", Return: nvml.ERROR_UNKNOWN, Times: 1})
			_ = m.SetLatency("nvmlDeviceGetName", time.Microsecond)
			_ = m.Lose(0)
			_, _ = m.State()
			_ = m.Return(0)
			_ = m.Clear()
		}
	})
	all.Wait()
	if state, _ := m.State(); state.Sessions != 0 || state.GPUs[0].Lost {
		t.Errorf("the machine is left as %+v", state)
	}
}

// useOnce ignores what calls return: any may fail while the machine is tampered with.
func useOnce(m *Machine) {
	s := m.NewSession()
	_ = s.Init()
	set, _ := s.EventSetCreate()
	for index := range 2 {
		d, ret := s.DeviceGetHandleByIndex(index)
		if ret != nvml.SUCCESS {
			continue
		}
		_ = d.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		_, _ = d.GetUUID()
		_, _ = d.GetName()
		_ = d.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
		_, _ = d.GetComputeMode()
	}
	var waiter sync.WaitGroup
	waiter.Go(func() { _, _ = set.Wait(60_000) })
	s.Close()
	waiter.Wait()
}
