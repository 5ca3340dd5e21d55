package conformance

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	nvlibdevice "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvlib/pkg/nvlib/info"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func (s suite) lostGPU(t *testing.T) {
	lib := s.open(t)
	d := device(t, lib, 0)
	id := uuid(t, d)
	act(t, s.control.Lose(0))

	const want = nvml.ERROR_GPU_IS_LOST
	gives(t, "the number of GPUs with one lost", len(s.node.GPUs))(lib.DeviceGetCount())
	refuses(t, "DeviceGetHandleByIndex", want)(lib.DeviceGetHandleByIndex(0))
	refuses(t, "DeviceGetHandleByUUID", want)(lib.DeviceGetHandleByUUID(id))
	refuses(t, "DeviceGetHandleByPciBusId", want)(lib.DeviceGetHandleByPciBusId(s.node.GPUs[0].PCIBusID))
	refuses(t, "GetUUID", want)(d.GetUUID())
	refuses(t, "GetMemoryInfo", want)(d.GetMemoryInfo())
	refuses(t, "GetComputeMode", want)(d.GetComputeMode())
	refuses(t, "GetFanSpeed", want)(d.GetFanSpeed())
	returns(t, "SetComputeMode", want, d.SetComputeMode(nvml.COMPUTEMODE_PROHIBITED))
	for i := 1; i < len(s.node.GPUs); i++ {
		uuid(t, device(t, lib, i))
		refuses(t, "the topology towards a lost GPU", want)(device(t, lib, i).GetTopologyCommonAncestor(d))
	}
	if state := s.state(t); !state.GPUs[0].Lost {
		t.Error("the machine's state does not say that the GPU is lost")
	}

	act(t, s.control.Return(0))
	gives(t, "the UUID of a returned GPU", id)(d.GetUUID())
	gives(t, "the compute mode of a returned GPU", nvml.COMPUTEMODE_DEFAULT)(d.GetComputeMode())
}

// attachments: the enumeration follows, and handles of GPUs that stay are good.
func (s suite) attachments(t *testing.T) {
	lib := s.open(t)
	idle := slices.IndexFunc(s.node.GPUs, func(g model.GPU) bool { return g.MIG == nil })
	if idle < 0 {
		return
	}
	all := len(s.node.GPUs)
	d, last := device(t, lib, idle), device(t, lib, all-1)
	id, lastID := uuid(t, d), uuid(t, last)
	act(t, s.control.Detach(idle))
	gives(t, "the number of GPUs with one detached", all-1)(lib.DeviceGetCount())
	refuses(t, "DeviceGetHandleByUUID of a detached GPU", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByUUID(id))
	refuses(t, "DeviceGetHandleByPciBusId of a detached GPU", nvml.ERROR_NOT_FOUND)(lib.DeviceGetHandleByPciBusId(s.node.GPUs[idle].PCIBusID))
	refuses(t, "the index past the GPUs that are there", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByIndex(all - 1))
	refuses(t, "GetUUID of a detached GPU", nvml.ERROR_GPU_IS_LOST)(d.GetUUID())
	if idle < all-1 {
		gives(t, "the UUID of another", lastID)(last.GetUUID())
		gives(t, "the index of one behind it", all-2)(last.GetIndex())
	}
	if state := s.state(t); !state.GPUs[idle].Absent || state.GPUs[idle].Lost {
		t.Errorf("the machine's state says %+v of a detached GPU", state.GPUs[idle])
	}
	for what, err := range map[string]error{"lost": s.control.Lose(idle), "detached": s.control.Detach(idle), "reset": s.control.Reset(idle)} {
		if err == nil {
			t.Errorf("an absent GPU was %s", what)
		}
	}
	act(t, s.control.Attach(idle))
	gives(t, "the number of GPUs again", all)(lib.DeviceGetCount())
	gives(t, "the UUID of an attached GPU", id)(device(t, lib, idle).GetUUID())
	if err := s.control.Attach(idle); err == nil {
		t.Error("a GPU was attached twice")
	}
}

func (s suite) callsAreCounted(t *testing.T) {
	lib := s.open(t)
	before := s.state(t).Calls
	d := device(t, lib, 0)
	uuid(t, d)
	uuid(t, d)
	refuses(t, "a GPU past the end", nvml.ERROR_INVALID_ARGUMENT)(lib.DeviceGetHandleByIndex(len(s.node.GPUs)))
	refuses(t, "a function that is not modelled", nvml.ERROR_NOT_SUPPORTED)(d.GetFanSpeed())
	want := model.Calls{"nvmlDeviceGetHandleByIndex_v2": 2, "nvmlDeviceGetUUID": 2, "nvmlDeviceGetFanSpeed": 1}
	calls := s.state(t).Calls.Since(before)
	if !maps.Equal(calls, want) || calls.Total() != 5 {
		t.Errorf("%d calls were counted: %v, want %v", calls.Total(), calls, want)
	}
}

func (s suite) latency(t *testing.T) {
	lib := s.open(t)
	d := device(t, lib, 0)
	const delay = 120 * time.Millisecond
	act(t, s.control.SetLatency("nvmlDeviceGetUUID", delay))
	act(t, s.control.SetLatency("nvmlDeviceGetCount", delay))
	for what, call := range map[string]func(){
		"GetUUID":                         func() { uuid(t, d) },
		"a function named without its _v": func() { gives(t, "the number of GPUs", len(s.node.GPUs))(lib.DeviceGetCount()) },
	} {
		start := time.Now()
		call()
		if took := time.Since(start); took < delay {
			t.Errorf("%s took %s, less than its latency of %s", what, took, delay)
		}
	}
	if state := s.state(t); len(state.Latencies) != 2 {
		t.Errorf("the machine's state lists latencies %v, want two", state.Latencies)
	}
	act(t, s.control.SetLatency("nvmlDeviceGetUUID", 0))
	act(t, s.control.Clear())
	if state := s.state(t); len(state.Latencies) != 0 {
		t.Errorf("the machine's state lists latencies %v after they were cleared", state.Latencies)
	}
}

// contention: look-ups by UUID are slow only beside each other.
func (s suite) contention(t *testing.T) {
	const each, others, contention = 20 * time.Millisecond, 4, 50 * time.Millisecond
	lib := s.open(t)
	d := device(t, lib, 0)
	id := uuid(t, d)
	act(t, s.control.SetLatency(model.AnyFunction, each))
	act(t, s.control.SetContention(contention))
	lookup := func() time.Duration {
		start := time.Now()
		_, ret := lib.DeviceGetHandleByUUID(id)
		returns(t, "DeviceGetHandleByUUID", nvml.SUCCESS, ret)
		return time.Since(start)
	}
	var slowest time.Duration
	var mu sync.Mutex
	var all sync.WaitGroup
	for range others + 1 {
		all.Go(func() {
			took := lookup()
			mu.Lock()
			defer mu.Unlock()
			slowest = max(slowest, took)
		})
	}
	all.Wait()
	// Whether all of them meet is the scheduler's to say; that two do is sure.
	if slowest < each+contention {
		t.Errorf("the slowest of %d look-ups at once took %s", others+1, slowest)
	}
	start := time.Now()
	uuid(t, d)
	if took := time.Since(start); took < each {
		t.Errorf("a function without a latency of its own took %s, less than that of all of %s", took, each)
	}
	if state := s.state(t); state.Contention != contention {
		t.Errorf("the machine's state says that the contention is %s", state.Contention)
	}
	act(t, s.control.Clear())
	if state := s.state(t); state.Contention != 0 {
		t.Errorf("a contention of %s is left after it was cleared", state.Contention)
	}
}

func (s suite) failures(t *testing.T) {
	lib := s.open(t)
	d := device(t, lib, 0)
	const failed = nvml.ERROR_UNKNOWN
	act(t, s.control.Fail(model.Failure{Function: "nvmlDeviceGetMemoryInfo", Return: failed, Times: 2}))
	refuses(t, "the first failing call", failed)(d.GetMemoryInfo())
	refuses(t, "the second failing call", failed)(d.GetMemoryInfo())
	_, ret := d.GetMemoryInfo()
	returns(t, "the third call", nvml.SUCCESS, ret)

	last := len(s.node.GPUs) - 1
	act(t, s.control.Fail(model.Failure{Function: "nvmlDeviceGetName", Return: nvml.ERROR_TIMEOUT, GPU: &last}))
	for i := range s.node.GPUs {
		want := nvml.SUCCESS
		if i == last {
			want = nvml.ERROR_TIMEOUT
		}
		_, ret := device(t, lib, i).GetName()
		returns(t, fmt.Sprintf("the name of GPU %d", i), want, ret)
	}
	if state := s.state(t); len(state.Failures) != 1 {
		t.Errorf("the machine's state lists failures %v, want one", state.Failures)
	}
	act(t, s.control.Clear())
	gives(t, "the name after the failure was cleared", s.board(t, last).ProductName)(device(t, lib, last).GetName())

	act(t, s.control.Fail(model.Failure{Function: "nvmlInit", Return: nvml.ERROR_DRIVER_NOT_LOADED, Times: 1}))
	fresh := s.client(t)
	returns(t, "Init without a driver", nvml.ERROR_DRIVER_NOT_LOADED, fresh.Init())
	returns(t, "Init once the driver is there", nvml.SUCCESS, fresh.Init())
	returns(t, "Shutdown", nvml.SUCCESS, fresh.Shutdown())
}

func (s suite) wrongControl(t *testing.T) {
	none := len(s.node.GPUs)
	for what, err := range map[string]error{
		"an XID of no GPU":             s.control.Inject(model.XID(none, 1)),
		"an event of no type":          s.control.Inject(model.Event{GPU: 0}),
		"losing no GPU":                s.control.Lose(none),
		"returning a GPU not lost":     s.control.Return(0),
		"the latency of no function":   s.control.SetLatency("nvmlNoSuchFunction", time.Second),
		"a negative latency":           s.control.SetLatency("nvmlDeviceGetUUID", -time.Second),
		"a failure of no function":     s.control.Fail(model.Failure{Function: "GetUUID", Return: nvml.ERROR_UNKNOWN}),
		"a failure that is a success":  s.control.Fail(model.Failure{Function: "nvmlDeviceGetUUID"}),
		"a failure of no GPU":          s.control.Fail(model.Failure{Function: "nvmlDeviceGetUUID", Return: nvml.ERROR_UNKNOWN, GPU: &none}),
		"a failure after no effect":    s.control.Fail(model.Failure{Function: "nvmlDeviceGetUUID", Return: nvml.ERROR_UNKNOWN, After: true}),
		"a latency after no effect":    s.control.SetLatencyAfter("nvmlDeviceGetUUID", time.Second),
		"a driver that is no version":  s.control.SetDriver(model.Driver{Library: "new"}),
		"a negative contention":        s.control.SetContention(-time.Second),
		"a failure of all functions":   s.control.Fail(model.Failure{Function: model.AnyFunction, Return: nvml.ERROR_UNKNOWN}),
		"no latency profile":           s.control.SetLatencyProfile("slow"),
		"the MIG mode of no GPU":       s.control.SetMIGMode(none, true),
		"a reset of no GPU":            s.control.Reset(none),
		"a use of no GPU":              s.control.Occupy(none, nil, true),
		"a failure that never happens": s.control.Fail(model.Failure{Function: "nvmlDeviceGetUUID", Return: nvml.ERROR_UNKNOWN, Times: -1}),
	} {
		if err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	state := s.state(t)
	if len(state.Latencies)+len(state.Failures) != 0 {
		t.Errorf("refused requests left %v and %v behind", state.Latencies, state.Failures)
	}
}

func (s suite) sharedState(t *testing.T) {
	first, second := s.open(t), s.open(t)
	for i := range s.node.GPUs {
		a, b := device(t, first, i), device(t, second, i)
		if s.enabled(i) {
			continue
		}
		returns(t, "SetComputeMode", nvml.SUCCESS, a.SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
		gives(t, "the compute mode that another client set", nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)(b.GetComputeMode())
		returns(t, "SetPersistenceMode", nvml.SUCCESS, b.SetPersistenceMode(nvml.FEATURE_ENABLED))
		gives(t, "the persistence mode that another client set", nvml.FEATURE_ENABLED)(a.GetPersistenceMode())
		if got := s.state(t).GPUs[i]; got.ComputeMode != "Exclusive_Process" || !got.PersistenceMode {
			t.Errorf("the machine's state says %+v of GPU %d", got, i)
		}
	}
	if s.state(t).Sessions < 1 {
		t.Error("the machine's state counts no session while two clients are open")
	}
}

func (s suite) nvlibDevice(t *testing.T) {
	lib := s.open(t)
	visited := 0
	err := nvlibdevice.New(lib).VisitDevices(func(i int, d nvlibdevice.Device) error {
		visited++
		board := s.board(t, i)
		capable, err := d.IsMigCapable()
		if err != nil || capable != (board.MIG != nil) {
			t.Errorf("go-nvlib says %t (%v) of GPU %d being capable of MIG", capable, err, i)
		}
		if enabled, err := d.IsMigEnabled(); err != nil || enabled != s.enabled(i) {
			t.Errorf("go-nvlib says %t (%v) of MIG on GPU %d", enabled, err, i)
		}
		if attached, err := d.IsFabricAttached(); err != nil || attached {
			t.Errorf("go-nvlib says %t (%v) of GPU %d being in a fabric of several machines", attached, err, i)
		}
		if coherent, err := d.IsCoherent(); err != nil || coherent {
			t.Errorf("go-nvlib says %t (%v) of GPU %d being coherent", coherent, err, i)
		}
		want := 0
		for _, gi := range s.state(t).GPUs[i].Instances {
			want += len(gi.ComputeInstances)
		}
		if migs, err := d.GetMigDevices(); err != nil || len(migs) != want {
			t.Errorf("go-nvlib finds %d MIG devices (%v) on GPU %d, want %d", len(migs), err, i, want)
		}
		s.nvlibProfiles(t, i, d)
		return nil
	})
	act(t, err)
	if visited != len(s.node.GPUs) {
		t.Errorf("go-nvlib visits %d GPUs, want %d", visited, len(s.node.GPUs))
	}
}

// nvlibProfiles compares the names that go-nvlib computes from memory sizes with
// those of the catalogue: profiles without a share of the compute engines.
func (s suite) nvlibProfiles(t *testing.T, gpu int, d nvlibdevice.Device) {
	t.Helper()
	var got, want []string
	act(t, d.VisitMigProfiles(func(p nvlibdevice.MigProfile) error {
		whole := p.GetInfo()
		if whole.C == whole.G && !slices.Contains(got, p.String()) {
			got = append(got, p.String())
		}
		return nil
	}))
	if geometry := s.board(t, gpu).MIG; geometry != nil {
		for _, p := range geometry.Profiles {
			want = append(want, p.Name)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("go-nvlib names the profiles of GPU %d %v, the catalogue %v", gpu, got, want)
	}
}

func (s suite) nvlibInfo(t *testing.T) {
	lib := s.client(t)
	root := t.TempDir()
	platform := info.New(info.WithNvmlLib(lib), info.WithDeviceLib(nvlibdevice.New(lib)), info.WithRoot(filepath.Clean(root)))
	if integrated, reason := platform.HasAnIntegratedGPU(); integrated || reason != "no integrated GPUs found" {
		t.Errorf("go-nvlib says %t of integrated GPUs: %s", integrated, reason)
	}
}
