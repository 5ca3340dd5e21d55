package nvml_test

import (
	"errors"
	"math"
	"reflect"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func use(percent int, memory uint64) model.Use {
	return model.Use{Utilization: &percent, MemoryBytes: &memory}
}

// read reads a device that has to answer.
func read(t *testing.T, m *nvml.Meter) gpu.Usage {
	t.Helper()
	usage, err := m.Read()
	must(t, err)
	return usage
}

func wantMemory(t *testing.T, usage gpu.Usage, used, total uint64) {
	t.Helper()
	if want := (gpu.MemoryUsage{Used: used, Total: total}); usage.Memory == nil || *usage.Memory != want {
		t.Errorf("the memory is %+v, want %+v", usage.Memory, want)
	}
}

func TestTheUsageOfAGPU(t *testing.T) {
	for _, node := range []string{"p5.48xlarge", "p4d.24xlarge", "g6.xlarge", "g4dn.xlarge", "pascal"} {
		t.Run(node, func(t *testing.T) {
			machine, library, uuid := partitionable(t, node)
			meter, total := library.Meter(uuid), machine.GPUs()[0].Board.MemoryBytes()
			idle := read(t, meter)
			wantMemory(t, idle, 0, total)
			if idle.Utilization == nil || *idle.Utilization != 0 {
				t.Errorf("the utilization is %v, want 0", ptr.Deref(idle.Utilization, -1))
			}
			must(t, machine.SetUse(0, nil, use(80, 2<<30)))
			busy := read(t, meter)
			wantMemory(t, busy, 2<<30, total)
			if got := ptr.Deref(busy.Utilization, -1); got != 0.8 {
				t.Errorf("the utilization is %v, want 0.8", got)
			}
			must(t, meter.Close())
		})
	}
}

// instance makes a MIG device of one slice on the first GPU.
func instance(t *testing.T, machine *model.Machine, profile string) model.InstanceState {
	t.Helper()
	made, err := machine.CreateInstance(0, profile, nil)
	must(t, err)
	return made
}

func TestTheUsageOfAMIGDevice(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	must(t, machine.SetMIGMode(0, true))
	made := instance(t, machine, "1g.10gb")
	must(t, machine.SetUse(0, &made.ID, use(35, 1<<30)))
	other := instance(t, machine, "2g.20gb")
	must(t, machine.SetUse(0, &other.ID, use(90, 9<<30)))
	meter := library.Meter(made.ComputeInstances[0].UUID)

	first := read(t, meter)
	wantMemory(t, first, 1<<30, 9984<<20)
	second := read(t, meter)
	for i, usage := range []gpu.Usage{first, second} {
		if got := ptr.Deref(usage.Utilization, -1); math.Abs(got-0.35) > 0.02 {
			t.Errorf("answer %d has the utilization %v, want 0.35", i+1, got)
		}
	}

	whole := read(t, library.Meter(uuid))
	if whole.Utilization != nil {
		t.Errorf("the GPU has the utilization %v, which NVML does not tell where MIG is enabled", *whole.Utilization)
	}
	wantMemory(t, whole, 10<<30, machine.GPUs()[0].Board.MemoryBytes())
	must(t, meter.Close())
	must(t, meter.Close())
}

// No counters are on boards before Hopper: what is not known is not 0.
func TestA100ReportsNoUtilizationOfAMIGDevice(t *testing.T) {
	machine, library, _ := partitionable(t, "p4d.24xlarge")
	must(t, machine.SetMIGMode(0, true))
	must(t, machine.Reset(0))
	made := instance(t, machine, "1g.5gb")
	must(t, machine.SetUse(0, &made.ID, use(35, 1<<30)))
	meter := library.Meter(made.ComputeInstances[0].UUID)
	for range 3 {
		usage := read(t, meter)
		wantMemory(t, usage, 1<<30, 4864<<20)
		if usage.Utilization != nil {
			t.Errorf("the utilization is %v", *usage.Utilization)
		}
	}
	must(t, meter.Close())
}

func TestWhatCannotBeRead(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	meter := library.Meter(uuid)
	for _, test := range []struct {
		function string
		answer   gonvml.Return
		want     error
		told     string
		usage    func(gpu.Usage) bool
	}{
		{"nvmlDeviceGetMemoryInfo", gonvml.ERROR_UNKNOWN, nvml.ErrTransient, "read the memory in use of " + uuid,
			func(u gpu.Usage) bool { return u.Memory == nil && u.Utilization != nil }},
		{"nvmlDeviceGetUtilizationRates", gonvml.ERROR_UNKNOWN, nvml.ErrTransient, "read the utilization of " + uuid,
			func(u gpu.Usage) bool { return u.Memory != nil && u.Utilization == nil }},
		{"nvmlDeviceGetHandleByUUID", gonvml.ERROR_GPU_IS_LOST, nvml.ErrGPULost, "open of " + uuid,
			func(u gpu.Usage) bool { return u == gpu.Usage{} }},
	} {
		must(t, machine.Fail(model.Failure{Function: test.function, Return: test.answer}))
		usage, err := meter.Read()
		fixture.Sentence(t, err, test.told)
		if !errors.Is(err, test.want) || !test.usage(usage) {
			t.Errorf("%s fails: got %+v, %v, want %v", test.function, usage, err, test.want)
		}
		must(t, machine.Clear())
	}
	// Old drivers have the first version only.
	must(t, machine.Fail(model.Failure{Function: "nvmlDeviceGetMemoryInfo_v2", Return: gonvml.ERROR_NOT_SUPPORTED}))
	wantMemory(t, read(t, meter), 0, machine.GPUs()[0].Board.MemoryBytes())
	must(t, machine.Fail(model.Failure{Function: "nvmlDeviceGetMemoryInfo", Return: gonvml.ERROR_NOT_SUPPORTED}))
	if usage := read(t, meter); usage.Memory != nil {
		t.Errorf("a GPU without memory of its own has %+v", usage.Memory)
	}
	if _, err := library.Meter("GPU-elsewhere").Read(); !errors.Is(err, nvml.ErrGPULost) {
		t.Errorf("got %v of a GPU that is not there, want %v", err, nvml.ErrGPULost)
	}
}

func TestTheSensorsOfAGPU(t *testing.T) {
	for node, links := range map[string]bool{"p5.48xlarge": true, "p4d.24xlarge": true, "g6.xlarge": false, "g4dn.xlarge": false, "pascal": false} {
		t.Run(node, func(t *testing.T) {
			machine, library, uuid := partitionable(t, node)
			set := model.Use{Temperature: ptr.To(uint32(65)), PowerMilliwatts: ptr.To(uint32(420_500))}
			want := gpu.Sensors{Temperature: ptr.To(65.0), Power: ptr.To(420.5)}
			if links {
				const more = 1 << 40 // than 32 bits have
				set.NVLink = &model.Traffic{SentKiB: more, ReceivedKiB: 3}
				want.NVLink = &gpu.Traffic{Sent: more << 10, Received: 3 << 10}
			}
			must(t, machine.SetUse(0, nil, set))
			meter := library.Meter(uuid)
			got, err := meter.Sense()
			must(t, err)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("the sensors are %+v, want %+v", got, want)
			}
			must(t, meter.Close())
		})
	}
}

// The other sensors are still read, and a broken one is no reason to open the GPU anew.
func TestSensorsThatCannotBeRead(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	meter := library.Meter(uuid)
	all, err := meter.Sense()
	must(t, err)
	if all.Temperature == nil || all.Power == nil || all.NVLink == nil {
		t.Fatalf("the sensors are %+v", all)
	}
	opened := calls(t, machine)["nvmlDeviceGetHandleByUUID"]
	for _, test := range []struct {
		function, told string
		lacks          func(*gpu.Sensors)
	}{
		{"nvmlDeviceGetTemperature", "read the temperature of " + uuid, func(s *gpu.Sensors) { s.Temperature = nil }},
		{"nvmlDeviceGetPowerUsage", "read the power usage of " + uuid, func(s *gpu.Sensors) { s.Power = nil }},
		{"nvmlDeviceGetFieldValues", "read the NVLink counters of " + uuid, func(s *gpu.Sensors) { s.NVLink = nil }},
	} {
		want := all
		test.lacks(&want)
		for _, answer := range []gonvml.Return{gonvml.ERROR_UNKNOWN, gonvml.ERROR_NOT_SUPPORTED} {
			must(t, machine.Fail(model.Failure{Function: test.function, Return: answer}))
			sensors, err := meter.Sense()
			if answer == gonvml.ERROR_NOT_SUPPORTED {
				must(t, err)
			} else {
				fixture.Sentence(t, err, test.told)
			}
			if !reflect.DeepEqual(sensors, want) {
				t.Errorf("%s answers %s: got %+v, want %+v", test.function, answer, sensors, want)
			}
			must(t, machine.Clear())
		}
	}
	if again := calls(t, machine)["nvmlDeviceGetHandleByUUID"]; again > opened {
		t.Errorf("the GPU was opened %d times more", again-opened)
	}
	must(t, machine.Lose(0))
	if sensors, err := meter.Sense(); !errors.Is(err, nvml.ErrGPULost) || sensors != (gpu.Sensors{}) {
		t.Errorf("got %+v, %v of a GPU that is lost, want %v", sensors, err, nvml.ErrGPULost)
	}
}

func calls(t *testing.T, machine *model.Machine) model.Calls {
	t.Helper()
	state, err := machine.State()
	must(t, err)
	return state.Calls
}

func TestAMIGDeviceHasNoSensors(t *testing.T) {
	machine, library, _ := partitionable(t, "p5.48xlarge")
	must(t, machine.SetMIGMode(0, true))
	meter := library.Meter(instance(t, machine, "1g.10gb").ComputeInstances[0].UUID)
	before := calls(t, machine)
	if sensors, err := meter.Sense(); err != nil || sensors != (gpu.Sensors{}) || calls(t, machine).Since(before).Total() > 0 {
		t.Errorf("got %+v, %v", sensors, err)
	}
}

// By nvml.h, no GPU is found by its UUID where any has fallen off the bus.
func TestAGPUIsReadWhileAnotherOneIsLost(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	meter := library.Meter(uuid)
	read(t, meter)
	must(t, machine.Fail(model.Failure{Function: "nvmlDeviceGetHandleByUUID", Return: gonvml.ERROR_GPU_IS_LOST}))
	if usage := read(t, meter); usage.Memory == nil || usage.Utilization == nil {
		t.Errorf("got %+v", usage)
	}
	must(t, machine.Clear())

	must(t, machine.Lose(0))
	if _, err := meter.Read(); !errors.Is(err, nvml.ErrGPULost) {
		t.Errorf("got %v of the one that is lost, want %v", err, nvml.ErrGPULost)
	}
	must(t, machine.Return(0))
	read(t, meter)
}

func TestAMIGDeviceThatGoesWhileItIsRead(t *testing.T) {
	machine, library, _ := partitionable(t, "p5.48xlarge")
	must(t, machine.SetMIGMode(0, true))
	made := instance(t, machine, "1g.10gb")
	meter := library.Meter(made.ComputeInstances[0].UUID)
	read(t, meter)
	must(t, machine.Fail(model.Failure{Function: "nvmlGpmMigSampleGet", Return: gonvml.ERROR_NOT_FOUND, Times: 1}))
	if usage, err := meter.Read(); !errors.Is(err, nvml.ErrNotFound) || usage.Memory == nil {
		t.Errorf("got %+v, %v of an instance that has just gone, want %v", usage, err, nvml.ErrNotFound)
	}
	must(t, machine.DestroyInstance(0, made.ID))
	if _, err := meter.Read(); !errors.Is(err, nvml.ErrNotFound) {
		t.Errorf("got %v of an instance that is gone, want %v", err, nvml.ErrNotFound)
	}
	must(t, meter.Close())
}
