package nvml_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// everyGPU makes all GPUs of an oddDriver odd.
const everyGPU = -1

// oddDriver is one with a GPU of its own kind.
type oddDriver struct {
	gonvml.Interface
	index int
	odd   func(gonvml.Device) gonvml.Device
	// count replaces that of the GPUs unless it is nil.
	count *int
}

func (o oddDriver) DeviceGetCount() (int, gonvml.Return) {
	if o.count != nil {
		return *o.count, gonvml.SUCCESS
	}
	return o.Interface.DeviceGetCount()
}

func (o oddDriver) DeviceGetHandleByIndex(index int) (gonvml.Device, gonvml.Return) {
	handle, ret := o.Interface.DeviceGetHandleByIndex(index)
	if (index == o.index || o.index == everyGPU) && ret == gonvml.SUCCESS {
		return o.odd(handle), ret
	}
	return handle, ret
}

// mute is a GPU whose calls do not return until it is released.
type mute struct {
	gonvml.Device
	silent chan struct{} // nil while it answers
}

func (m *mute) wait() {
	if m.silent != nil {
		<-m.silent
	}
}

func (m *mute) GetMinorNumber() (int, gonvml.Return) {
	m.wait()
	return m.Device.GetMinorNumber()
}

func (m *mute) GetMigMode() (int, int, gonvml.Return) {
	m.wait()
	return m.Device.GetMigMode()
}

func (m *mute) GetPersistenceMode() (gonvml.EnableState, gonvml.Return) {
	m.wait()
	return m.Device.GetPersistenceMode()
}

func (m *mute) SetPersistenceMode(mode gonvml.EnableState) gonvml.Return {
	m.wait()
	return m.Device.SetPersistenceMode(mode)
}

func (m *mute) GetFieldValues(values []gonvml.FieldValue) gonvml.Return {
	m.wait()
	return m.Device.GetFieldValues(values)
}

func (m *mute) GetSupportedEventTypes() (uint64, gonvml.Return) {
	m.wait()
	return m.Device.GetSupportedEventTypes()
}

// withOdd is a machine of eight GPUs whose third is odd.
func withOdd(t *testing.T, odd func(gonvml.Device) gonvml.Device) (*nvml.Library, *model.Machine) {
	t.Helper()
	file := fixture.File(t, "p5.48xlarge")
	machine := fixture.Machine(t, file)
	library, err := nvml.New(oddDriver{Interface: machine.Library(), index: 2, odd: odd}, fixture.Sysfs(file))
	must(t, err)
	return library, machine
}

// One GPU that does not answer holds the others up once, and not later.
func TestAGPUThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mute{}
		library, machine := withOdd(t, func(d gonvml.Device) gonvml.Device {
			m.Device = d
			return m
		})
		node, unreadable, err := library.Discover()
		must(t, errors.Join(append(unreadable, err)...))
		release := make(chan struct{})
		m.silent = release

		start := time.Now()
		gpus, err := library.Refresh(node.GPUs)
		if !errors.Is(err, nvml.ErrSilent) || len(gpus) != 8 {
			t.Errorf("got %d GPUs and %v", len(gpus), err)
		}
		_, err = library.Refresh(node.GPUs)
		fixture.Sentence(t, err, "look at GPU 2: the GPU does not answer within 10s")
		for range 10 {
			found, unreadable, err := library.Discover()
			must(t, err)
			at := new(nvml.UnreadableError)
			if len(found.GPUs) != 7 || len(unreadable) != 1 || !errors.As(unreadable[0], &at) || at.Index != 2 || !errors.Is(unreadable[0], nvml.ErrSilent) {
				t.Errorf("got %d GPUs and %v", len(found.GPUs), unreadable)
			}
			if resting, err := library.Rest(); resting || err != nil {
				t.Errorf("it rests %t under a call: %v", resting, err)
			}
			if persistent, err := library.Persistent(); persistent {
				t.Errorf("it is said to be persistent: %v", err)
			}
		}
		if took := time.Since(start); took > 20*time.Second { // once for looks, once for the persistence mode
			t.Errorf("it held others up for %s", took)
		}

		heard := make(chan nvml.Report)
		go func() {
			report, _ := library.NextEvent(t.Context())
			heard <- report
		}()
		time.Sleep(time.Minute)
		must(t, machine.Inject(model.XID(5, 79)))
		if report := <-heard; report.UUID != node.GPUs[5].UUID {
			t.Errorf("of another GPU's event: got %+v", report)
		}

		close(release)
		synctest.Wait()
		node, unreadable, err = library.Discover()
		must(t, errors.Join(append(unreadable, err)...))
		if len(node.GPUs) != 8 {
			t.Errorf("after it answers: got %d GPUs", len(node.GPUs))
		}
		if _, err := library.Persistent(); err != nil {
			t.Error(err)
		}
		must(t, library.Close())
	})
}

// What is asked of a single GPU, as for its reset, is bounded, too. What was set last counts.
func TestQuestionsToAGPUThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &mute{}
		library, machine := withOdd(t, func(d gonvml.Device) gonvml.Device {
			m.Device = d
			return m
		})
		node, _, err := library.Discover()
		must(t, err)
		uuid, release := node.GPUs[2].UUID, make(chan struct{})
		m.silent = release
		for name, ask := range map[string]func() error{
			"its health":                func() error { _, err := library.Health(uuid); return err },
			"its instances":             func() error { _, err := library.Instances(uuid); return err },
			"its persistence mode":      func() error { _, err := library.Persistence(uuid); return err },
			"a change of that":          func() error { return library.SetPersistence(uuid, false) },
			"another change in between": func() error { return library.SetPersistence(uuid, true) },
		} {
			answered := make(chan error, 1)
			go func() { answered <- ask() }()
			select {
			case err := <-answered:
				if !errors.Is(err, nvml.ErrSilent) {
					t.Errorf("%s: got %v", name, err)
				}
			case <-time.After(time.Minute):
				t.Errorf("%s: no answer", name)
			}
		}
		close(release)
		synctest.Wait()
		must(t, library.SetPersistence(uuid, true))
		if state, err := machine.State(); err != nil || !state.GPUs[2].PersistenceMode {
			t.Errorf("the persistence mode is not what was set last: %v", err)
		}
		must(t, library.Close())
	})
}

// slowDriver takes a while to count its GPUs.
type slowDriver struct{ gonvml.Interface }

func (s slowDriver) DeviceGetCount() (int, gonvml.Return) {
	time.Sleep(10 * time.Millisecond)
	return s.Interface.DeviceGetCount()
}

// After the reset of a GPU, the first call begins a session, and the others use it.
func TestCallsThatBeginASessionTogether(t *testing.T) {
	file := fixture.File(t, "g5.12xlarge")
	library, err := nvml.New(slowDriver{fixture.Machine(t, file).Library()}, fixture.Sysfs(file))
	must(t, err)
	const calls = 4
	answers := make(chan error, calls)
	must(t, library.Closed(func() error {
		for range calls {
			go func() {
				_, unreadable, err := library.Discover()
				answers <- errors.Join(append(unreadable, err)...)
			}()
		}
		time.Sleep(50 * time.Millisecond) // until they wait
		return nil
	}))
	for range calls {
		select {
		case err := <-answers:
			must(t, err)
		case <-time.After(30 * time.Second):
			t.Fatal("calls wait for each other")
		}
	}
	must(t, library.Close())
}

// A process that ends does not wait for a GPU.
func TestClosingBesideAGPUThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		library, _ := withOdd(t, func(d gonvml.Device) gonvml.Device { return &mute{d, release} })
		ctx, cancel := context.WithCancel(t.Context())
		_, _, err := library.Discover()
		must(t, err)
		listening := make(chan struct{})
		go func() {
			defer close(listening)
			_, _ = library.NextEvent(ctx)
		}()
		time.Sleep(time.Second)
		cancel()
		<-listening
		must(t, library.Close())
		close(release)
		synctest.Wait()
	})
}

// liar answers with nonsense.
type liar struct {
	gonvml.Device
	uuid       *string
	minor      *int
	placements []gonvml.GpuInstancePlacement
}

func (l liar) GetUUID() (string, gonvml.Return) {
	if l.uuid != nil {
		return *l.uuid, gonvml.SUCCESS
	}
	return l.Device.GetUUID()
}

func (l liar) GetMinorNumber() (int, gonvml.Return) {
	if l.minor != nil {
		return *l.minor, gonvml.SUCCESS
	}
	return l.Device.GetMinorNumber()
}

func (l liar) GetGpuInstancePossiblePlacements(info *gonvml.GpuInstanceProfileInfo) ([]gonvml.GpuInstancePlacement, gonvml.Return) {
	if l.placements != nil {
		return l.placements, gonvml.SUCCESS
	}
	return l.Device.GetGpuInstancePossiblePlacements(info)
}

// A GPU about which NVML talks nonsense gets no claims, and the others are offered.
func TestAnswersThatMakeNoSense(t *testing.T) {
	empty, path, long, twin := "", "GPU-../../x", strings.Repeat("x", 1000), fixture.Node(t, "p5.48xlarge").GPUs[0].UUID
	negative, first := -1, 0
	for name, c := range map[string]struct {
		liar
		words string
	}{
		"no UUID":                        {liar{uuid: &empty}, `its UUID ""`},
		"a path as UUID":                 {liar{uuid: &path}, "GPU-../../x"},
		"a long UUID":                    {liar{uuid: &long}, "UUID"},
		"another's UUID":                 {liar{uuid: &twin}, "GPU 0 has"},
		"a negative minor number":        {liar{minor: &negative}, "minor number is -1"},
		"another's minor number":         {liar{minor: &first}, "GPU 0 has"},
		"a placement past the GPU's end": {liar{placements: []gonvml.GpuInstancePlacement{{Start: math.MaxUint32, Size: math.MaxUint32}}}, "placements"},
		"a placement without size":       {liar{placements: []gonvml.GpuInstancePlacement{{Start: 1}}}, "placements"},
		"too many placements":            {liar{placements: slices.Repeat([]gonvml.GpuInstancePlacement{{Size: 1}}, 1<<20)}, "placements"},
	} {
		t.Run(name, func(t *testing.T) {
			library, _ := withOdd(t, func(d gonvml.Device) gonvml.Device {
				c.Device = d
				return c.liar
			})
			node, unreadable, err := library.Discover()
			must(t, err)
			if len(node.GPUs) != 7 || len(unreadable) != 1 {
				t.Fatalf("got %d GPUs and %v", len(node.GPUs), unreadable)
			}
			fixture.Sentence(t, unreadable[0], c.words)
			if shapes := gpu.Shapes(node.GPUs, gpu.ByDefault); len(shapes) < 7 {
				t.Errorf("got the shapes %v", shapes)
			}
			must(t, library.Close())
		})
	}
}

func TestACountThatMakesNoSense(t *testing.T) {
	file := fixture.File(t, "g6.xlarge")
	for _, count := range []int{-1, 1 << 30} {
		library, err := nvml.New(oddDriver{Interface: fixture.Machine(t, file).Library(), count: &count}, fixture.Sysfs(file))
		must(t, err)
		_, _, err = library.Discover()
		fixture.Sentence(t, err, "count the GPUs", "reload the NVIDIA driver")
		must(t, library.Close())
	}
}
