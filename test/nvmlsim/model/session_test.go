package model

import (
	"sync"
	"testing"
	"time"

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
