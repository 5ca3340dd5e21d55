package model

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const partitioned = `
name: partitioned
driverVersion: "580.95.05"
cudaDriverVersion: "13.0"
numaNodes: [{id: 0, cpus: "0"}]
gpus:
- {board: a100-sxm-40gb, pciBusID: "0000:53:00.0", pciRoot: "pci0000:44", numaNode: 0, minor: 6, mig: {instances: [{profile: 3g.20gb, start: 4}, {profile: 1g.5gb, start: 0}, {profile: 2g.10gb, start: 2, computeSlices: [1, 1]}]}}
- {board: h100-sxm-80gb, pciBusID: "0000:64:00.0", pciRoot: "pci0000:55", numaNode: 0, minor: 0, mig: {instances: [{profile: 3g.40gb, start: 4}]}}
- {board: h100-sxm-80gb, pciBusID: "0000:75:00.0", pciRoot: "pci0000:66", numaNode: 0, minor: 1}
- {board: l4-24gb, pciBusID: "0000:86:00.0", pciRoot: "pci0000:77", numaNode: 0, minor: 2}
`

// everyHandle returns one handle of each kind that MIG has.
func everyHandle(t *testing.T, s *Session) (nvml.GpuInstance, nvml.ComputeInstance, nvml.Device) {
	t.Helper()
	d := handle(t, s, 0)
	mig, ret := d.GetMigDeviceHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatalf("get a MIG device: %v", ret)
	}
	id, _ := mig.GetGpuInstanceId()
	gi, ret := d.GetGpuInstanceById(id)
	if ret != nvml.SUCCESS {
		t.Fatalf("get a GPU instance: %v", ret)
	}
	ci, ret := gi.GetComputeInstanceById(0)
	if ret != nvml.SUCCESS {
		t.Fatalf("get a compute instance: %v", ret)
	}
	return gi, ci, mig
}

func TestEveryMethodOfMIGHandles(t *testing.T) {
	m := load(t, partitioned)
	s := initialised(t, m)
	gi, ci, mig := everyHandle(t, s)
	all := func(check func(kind string) func(string, nvml.Return)) {
		callAll(t, mig, reflect.TypeFor[nvml.Device](), check("MIG device"))
		callAll(t, ci, reflect.TypeFor[nvml.ComputeInstance](), check("ComputeInstance"))
		callAll(t, gi, reflect.TypeFor[nvml.GpuInstance](), check("GpuInstance"))
	}
	want := func(allowed ...nvml.Return) func(string) func(string, nvml.Return) {
		return func(kind string) func(string, nvml.Return) {
			return func(method string, ret nvml.Return) {
				if !slices.Contains(allowed, ret) {
					t.Errorf("%s.%s returned %v", kind, method, ret)
				}
			}
		}
	}
	if err := m.Lose(0); err != nil {
		t.Fatal(err)
	}
	all(want(nvml.ERROR_GPU_IS_LOST))
	if err := m.Return(0); err != nil {
		t.Fatal(err)
	}
	// The last two destroy what the handles are of.
	all(want(nvml.SUCCESS, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_FOUND))
	all(want(nvml.ERROR_INVALID_ARGUMENT))
	_ = s.Shutdown()
	all(want(nvml.ERROR_UNINITIALIZED))
}

// TestEveryEffect lets each function that is said to have one fail after it.
func TestEveryEffect(t *testing.T) {
	m := load(t, partitioned)
	s := initialised(t, m)
	gi, ci, _ := everyHandle(t, s)
	hopper := handle(t, s, 2)
	profile := &nvml.GpuInstanceProfileInfo{Id: 19}
	_, _ = hopper.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	spare, ret := hopper.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 9}, &nvml.GpuInstancePlacement{Start: 4, Size: 4})
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	calls := map[string]func() nvml.Return{
		"nvmlDeviceSetComputeMode":     func() nvml.Return { return hopper.SetComputeMode(nvml.COMPUTEMODE_DEFAULT) },
		"nvmlDeviceSetPersistenceMode": func() nvml.Return { return hopper.SetPersistenceMode(nvml.FEATURE_ENABLED) },
		"nvmlDeviceSetMigMode":         func() nvml.Return { _, ret := hopper.SetMigMode(nvml.DEVICE_MIG_ENABLE); return ret },
		"nvmlDeviceCreateGpuInstance":  func() nvml.Return { _, ret := hopper.CreateGpuInstance(profile); return ret },
		"nvmlDeviceCreateGpuInstanceWithPlacement": func() nvml.Return {
			_, ret := hopper.CreateGpuInstanceWithPlacement(profile, &nvml.GpuInstancePlacement{Start: 1, Size: 1})
			return ret
		},
		"nvmlGpuInstanceCreateComputeInstance": func() nvml.Return {
			_, ret := spare.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 0})
			return ret
		},
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement": func() nvml.Return {
			_, ret := spare.CreateComputeInstanceWithPlacement(&nvml.ComputeInstanceProfileInfo{Id: 0}, &nvml.ComputeInstancePlacement{Start: 2, Size: 1})
			return ret
		},
		"nvmlComputeInstanceDestroy": func() nvml.Return { return ci.Destroy() },
		"nvmlGpuInstanceDestroy":     func() nvml.Return { return gi.Destroy() },
		"nvmlSimDeviceReset":         func() nvml.Return { return handle(t, s, 3).(ResetDevice).Reset() },
		"nvmlSimDeviceSetTimeslice":  func() nvml.Return { return handle(t, s, 3).(TimesliceDevice).SetTimeslice(TimesliceLong) },
	}
	for _, function := range effective { // sorted: a compute instance goes before its GPU instance
		call := calls[function]
		if call == nil {
			t.Errorf("nothing calls %s", function)
			continue
		}
		if err := m.Fail(Failure{Function: function, Return: nvml.ERROR_TIMEOUT, Times: 1, After: true}); err != nil {
			t.Fatal(err)
		}
		if ret := call(); ret != nvml.ERROR_TIMEOUT {
			t.Errorf("%s returned %v", function, ret)
		}
	}
	if got := len(m.Instances(0)); got != 2 {
		t.Errorf("%d instances are left on GPU 0, want 2", got)
	}
	if got := m.Instances(2); len(got) != 3 || len(got[0].ComputeInstances) != 2 {
		t.Errorf("GPU 2 has %+v", got)
	}
}

func TestVisibleCapabilities(t *testing.T) {
	m := load(t, partitioned)
	all := m.Instances(0)
	small, halved := all[2], all[1] // 1g.5gb is GPU instance 7, 2g.10gb is 4
	if small.Profile != "1g.5gb" || halved.Profile != "2g.10gb" {
		t.Fatalf("the instances are %+v", all)
	}
	for _, test := range []struct {
		name         string
		capabilities []int
		want         []string
	}{
		{"none", nil, nil},
		{"a GPU instance alone", []int{small.Capability}, nil},
		{"a compute instance alone", []int{small.ComputeInstances[0].Capability}, nil},
		{"one device", []int{small.Capability, small.ComputeInstances[0].Capability}, []string{small.ComputeInstances[0].UUID}},
		{"one of two in a GPU instance", []int{halved.Capability, halved.ComputeInstances[1].Capability}, []string{halved.ComputeInstances[1].UUID}},
		{"two", []int{halved.Capability, halved.ComputeInstances[0].Capability, small.Capability, small.ComputeInstances[0].Capability},
			[]string{small.ComputeInstances[0].UUID, halved.ComputeInstances[0].UUID}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := initialised(t, m, VisibleMinors(6), VisibleCapabilities(test.capabilities...))
			d := handle(t, s, 0)
			var got []string
			for i := range 7 {
				if mig, ret := d.GetMigDeviceHandleByIndex(i); ret == nvml.SUCCESS {
					uuid, _ := mig.GetUUID()
					got = append(got, uuid)
					if index, ret := mig.GetIndex(); index != i || ret != nvml.SUCCESS {
						t.Errorf("the device at %d has index %d (%v)", i, index, ret)
					}
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("the process sees %v, want %v", got, test.want)
			}
			hidden := all[0].ComputeInstances[0].UUID
			if _, ret := s.DeviceGetHandleByUUID(hidden); ret != nvml.ERROR_NOT_FOUND {
				t.Errorf("a hidden device by UUID: %v", ret)
			}
			if _, ret := d.GetGpuInstanceById(all[0].ID); ret != nvml.ERROR_NO_PERMISSION {
				t.Errorf("a hidden GPU instance by ID: %v", ret)
			}
			if _, ret := d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19}); ret != nvml.ERROR_NO_PERMISSION {
				t.Errorf("a container creates an instance: %v", ret)
			}
		})
	}
	privileged := initialised(t, m, VisibleMinors(6), VisibleCapabilities(ConfigCapability))
	if _, ret := handle(t, privileged, 0).CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19}); ret != nvml.SUCCESS {
		t.Errorf("a container with the configuration's capability: %v", ret)
	}
}

// TestCapabilityNumbers holds the numbering against listings of real machines.
func TestCapabilityNumbers(t *testing.T) {
	for got, want := range map[int]int{
		GPUInstanceCapability(0, 2):         21,
		ComputeInstanceCapability(0, 2, 0):  22,
		ComputeInstanceCapability(0, 3, 0):  31,
		ComputeInstanceCapability(3, 3, 3):  439,
		ComputeInstanceCapability(6, 11, 5): 918,
	} {
		if got != want {
			t.Errorf("a capability has minor %d, want %d", got, want)
		}
	}
}

// TestHalvesAreNumberedEitherWay keeps clients from deriving an ID from a placement.
func TestHalvesAreNumberedEitherWay(t *testing.T) {
	m := load(t, partitioned)
	a, b := m.Instances(0)[0], m.Instances(1)[0]
	if a.Start != 4 || b.Start != 4 || a.ID != 2 || b.ID != 1 {
		t.Errorf("upper halves are %+v and %+v, want IDs 2 and 1", a, b)
	}
}

func TestReboot(t *testing.T) {
	m := load(t, partitioned)
	s := initialised(t, m)
	gi, _, mig := everyHandle(t, s)
	d := handle(t, s, 2)
	_ = d.SetPersistenceMode(nvml.FEATURE_ENABLED)
	_, _ = handle(t, s, 0).SetMigMode(nvml.DEVICE_MIG_DISABLE) // in use: pending
	for _, err := range []error{m.Occupy(2, nil, true), m.Occupy(0, &m.Instances(0)[0].ID, true), m.Lose(1), m.Reboot()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	state, _ := m.State()
	for i, want := range []string{"Disabled", "Disabled", "Disabled"} {
		g := state.GPUs[i]
		if len(g.Instances) != 0 || g.Lost || g.InUse || g.PersistenceMode || g.MIGMode != want || g.PendingMIGMode != want {
			t.Errorf("after a reboot GPU %d is %+v", i, g)
		}
	}
	if _, ret := gi.GetInfo(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a handle from before the reboot: %v", ret)
	}
	if _, ret := mig.GetUUID(); ret != nvml.ERROR_INVALID_ARGUMENT {
		t.Errorf("a MIG device from before the reboot: %v", ret)
	}
	// Ampere remembers its mode, Hopper does not.
	again := load(t, partitioned)
	if err := again.Reboot(); err != nil {
		t.Fatal(err)
	}
	state, _ = again.State()
	if state.GPUs[0].MIGMode != "Enabled" || state.GPUs[1].MIGMode != "Disabled" {
		t.Errorf("after a reboot MIG is %s on Ampere and %s on Hopper", state.GPUs[0].MIGMode, state.GPUs[1].MIGMode)
	}
}

// TestRebootWaitsForAllGPUsTogether lets each GPU be changed a little longer than
// the one before.
func TestRebootWaitsForAllGPUsTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := load(t, partitioned)
		for _, g := range m.gpus {
			g.changing <- struct{}{}
			time.AfterFunc(time.Duration(g.index+1)*ControlPatience*2/3, func() { <-g.changing })
		}
		start := time.Now()
		err := m.Reboot()
		if err == nil || !strings.Contains(err.Error(), "GPU 1 of machine") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took != ControlPatience {
			t.Errorf("it took %s", took)
		}
		time.Sleep(2 * ControlPatience)
		if err := m.Reboot(); err != nil {
			t.Errorf("once the changes have ended: %v", err)
		}
	})
}

// TestSlowCallsAreSeen finds a call in its latency, before its effect and after
// it, and lets its client die there.
func TestSlowCallsAreSeen(t *testing.T) {
	for _, after := range []bool{false, true} {
		m := load(t, partitioned)
		s := initialised(t, m)
		set := m.SetLatency
		if after {
			set = m.SetLatencyAfter
		}
		if err := set(createInstance, time.Hour); err != nil {
			t.Fatal(err)
		}
		creation := create(t, s, 0)
		call := awaitSlowCalls(t, m, 1)[0]
		if call.Function != createInstance || *call.GPU != 0 || call.After != after {
			t.Errorf("the slow call is %+v", call)
		}
		want := 3
		if after {
			want = 4
		}
		if got := len(m.Instances(0)); got != want {
			t.Errorf("there are %d instances while the call is slow, want %d", got, want)
		}
		s.Close()
		creation.Wait()
		if got := len(m.Instances(0)); got != want {
			t.Errorf("there are %d instances after the client's death, want %d", got, want)
		}
		if err := m.DestroyInstance(0, m.Instances(0)[0].ID); err != nil {
			t.Errorf("the dead client still holds the GPU: %v", err)
		}
		if state, _ := m.State(); len(state.SlowCalls) != 0 {
			t.Errorf("the slow calls are %+v", state.SlowCalls)
		}
	}
}

func awaitSlowCalls(t *testing.T, m *Machine, count int) []SlowCall {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if state, _ := m.State(); len(state.SlowCalls) == count {
			return state.SlowCalls
		}
	}
	t.Fatalf("%d calls are never slow at one time", count)
	return nil
}

// TestChangesOfOneGPUFollowEachOther finds that latencies add up on one GPU.
func TestChangesOfOneGPUFollowEachOther(t *testing.T) {
	m := load(t, partitioned)
	s := initialised(t, m)
	const delay = 20 * time.Millisecond
	if err := m.SetLatency(createInstance, delay); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	create(t, s, 1, 1, 1, 1).Wait()
	if took := time.Since(start); took < 4*delay {
		t.Errorf("four creations on one GPU took %s, less than four times %s", took, delay)
	}
}

// TestChangesOfSeveralGPUsOverlap finds two creations under way at one time.
func TestChangesOfSeveralGPUsOverlap(t *testing.T) {
	m := load(t, partitioned)
	s := initialised(t, m)
	if err := m.SetLatency(createInstance, time.Hour); err != nil {
		t.Fatal(err)
	}
	both := create(t, s, 0, 1)
	awaitSlowCalls(t, m, 2)
	s.Close()
	both.Wait()
}

const createInstance = "nvmlDeviceCreateGpuInstance"

// create starts a call for each of the GPUs.
func create(t *testing.T, s *Session, gpus ...int) *sync.WaitGroup {
	t.Helper()
	all := &sync.WaitGroup{}
	for _, gpu := range gpus {
		d := handle(t, s, gpu)
		all.Go(func() { _, _ = d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19}) })
	}
	return all
}

func TestWatchers(t *testing.T) {
	m := load(t, partitioned)
	s := initialised(t, m)
	var seen []string
	m.WatchInstances(func(gpu int, instances []InstanceState) {
		seen = append(seen, fmt.Sprintf("%d:%d", gpu, len(instances)))
	})
	d := handle(t, s, 0)
	gi, ret := d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19})
	if ret != nvml.SUCCESS || !slices.Equal(seen, []string{"0:4"}) {
		t.Errorf("after a creation (%v) watchers have seen %v", ret, seen)
	}
	if _, ret := d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 0}); ret != nvml.ERROR_INSUFFICIENT_RESOURCES {
		t.Errorf("the whole GPU beside others: %v", ret)
	}
	_ = gi.Destroy()
	if err := m.Reset(0); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(seen, []string{"0:4", "0:3", "0:0"}) {
		t.Errorf("watchers have seen %v", seen)
	}
}

func TestSetupRefuses(t *testing.T) {
	for _, test := range []struct{ name, old, new, want string }{
		{"a board without MIG", "h100-sxm-80gb, pciBusID: \"0000:64", "t4-16gb, pciBusID: \"0000:64", "does not support"},
		{"an unknown profile", "profile: 1g.5gb", "profile: 1g.10gb+me", `no MIG profile "1g.10gb+me"`},
		{"an impossible placement", "3g.40gb, start: 4", "3g.40gb, start: 3", "only at [0 4]"},
		{"an overlap", "1g.5gb, start: 0", "1g.5gb, start: 4", "does not fit at 4"},
		{"compute instances of no size", "[1, 1]", "[5]", "no compute instances of 5 slices"},
		{"compute instances of a size too large", "[1, 1]", "[3]", "no compute instances of 3 slices"},
		{"too many compute instances", "[1, 1]", "[1, 1, 1]", "do not fit"},
		{"an unknown field", "computeSlices", "computeSlice", "unknown field"},
		{"unknown latencies", "name: partitioned", "name: partitioned\nlatencies: slow", `no latency profile "slow"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			text := strings.Replace(partitioned, test.old, test.new, 1)
			if text == partitioned {
				t.Fatalf("the description does not contain %q", test.old)
			}
			f, err := ParseFile([]byte(text))
			if err == nil {
				_, err = Load(f)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got error %v, want one that mentions %q", err, test.want)
			}
		})
	}
	slow := load(t, strings.Replace(partitioned, "name: partitioned", "name: partitioned\nlatencies: realistic", 1))
	if state, _ := slow.State(); len(state.Latencies) < 5 {
		t.Errorf("a machine with realistic latencies has %v", state.Latencies)
	}
}

// TestConcurrentMIG is for the race detector: clients fight over one GPU while
// it is watched, reset and looked at.
func TestConcurrentMIG(t *testing.T) {
	m := load(t, partitioned)
	m.WatchInstances(func(int, []InstanceState) {})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			s := m.NewSession()
			defer s.Close()
			_ = s.Init()
			for i := range 40 {
				d, _ := s.DeviceGetHandleByIndex(i % 3)
				_, _ = d.SetMigMode(nvml.DEVICE_MIG_ENABLE)
				gi, ret := d.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 19})
				if ret != nvml.SUCCESS {
					continue
				}
				ci, ret := gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{})
				if ret == nvml.SUCCESS {
					if info, ret := ci.GetInfo(); ret == nvml.SUCCESS {
						_, _ = info.Device.GetIndex()
						_, _ = info.Device.GetUUID()
					}
					_ = ci.Destroy()
				}
				_ = gi.Destroy()
			}
		})
	}
	all.Go(func() {
		for i := range 40 {
			_ = m.Reset(i % 3)
			_, _ = m.CreateInstance(i%3, "1g.5gb", nil)
			_, _ = m.State()
			if i%20 == 0 {
				_ = m.Reboot()
			}
		}
	})
	all.Wait()
	for i := range 3 {
		if err := m.Reset(i); err != nil {
			t.Errorf("reset GPU %d: %v", i, err)
		}
		if left := m.Instances(i); len(left) != 0 {
			t.Errorf("GPU %d has %v", i, left)
		}
	}
}
