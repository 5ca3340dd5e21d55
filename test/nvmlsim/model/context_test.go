package model_test

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func visible(devices string) *string { return &devices }

func openContexts(t *testing.T, m *model.Machine, pid int, devices *string) *model.Contexts {
	t.Helper()
	c, err := m.OpenContexts(model.Process{PID: pid, Name: "test", VisibleDevices: devices})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func refusesContexts(t *testing.T, m *model.Machine, pid int, devices *string, want string) {
	t.Helper()
	c, err := m.OpenContexts(model.Process{PID: pid, Name: "test", VisibleDevices: devices})
	if err == nil {
		c.Close()
	}
	if err == nil || !strings.HasPrefix(err.Error(), want+":") {
		t.Errorf("process %d gets contexts: %v, want %s", pid, err, want)
	}
}

func setComputeMode(t *testing.T, m *model.Machine, gpu int, mode nvml.ComputeMode) {
	t.Helper()
	d, _ := openSession(t, m).DeviceGetHandleByIndex(gpu)
	if ret := d.SetComputeMode(mode); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
}

func TestComputeModeDecidesWhoHasContexts(t *testing.T) {
	m := loadNode(t, "g5.12xlarge")
	openContexts(t, m, 1, visible("0")).Close()
	setComputeMode(t, m, 0, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	first := openContexts(t, m, 1, visible("0"))
	refusesContexts(t, m, 2, visible("0"), "CUDA_ERROR_DEVICE_UNAVAILABLE")
	refusesContexts(t, m, 2, visible("1,0"), "CUDA_ERROR_DEVICE_UNAVAILABLE")
	openContexts(t, m, 1, visible("0")).Close()
	openContexts(t, m, 2, visible("1")).Close()
	first.Close()
	first.Close() // twice is once
	openContexts(t, m, 2, visible("0")).Close()
	setComputeMode(t, m, 0, nvml.COMPUTEMODE_PROHIBITED)
	refusesContexts(t, m, 1, visible("0"), "CUDA_ERROR_DEVICE_UNAVAILABLE")
}

func TestVisibleDevices(t *testing.T) {
	m := loadNode(t, "p5.48xlarge")
	if err := m.SetMIGMode(7, true); err != nil {
		t.Fatal(err)
	}
	partition, err := m.CreateInstance(7, "1g.10gb", nil)
	if err != nil {
		t.Fatal(err)
	}
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	mig, gpu2 := partition.ComputeInstances[0].UUID, state.GPUs[2].UUID
	for devices, want := range map[string][]string{
		"2":                     {gpu2},
		gpu2:                    {gpu2},
		gpu2[:10]:               {gpu2},
		"2,99,0":                {gpu2},
		gpu2 + ",0":             {gpu2, state.GPUs[0].UUID},
		mig:                     {mig},
		"0," + mig + "," + gpu2: {mig},
	} {
		var got []string
		for _, d := range openContexts(t, m, 1, visible(devices)).Devices() {
			got = append(got, d.UUID)
		}
		if strings.Join(got, ",") != strings.Join(want, ",") {
			t.Errorf("with %q a process sees %q, want %q", devices, got, want)
		}
	}
	if got := len(openContexts(t, m, 1, nil).Devices()); got != 7 {
		t.Errorf("a process sees %d GPUs, want those 7 on which MIG is not enabled", got)
	}
	for _, devices := range []string{"", "8", "7", "-1", "GPU-none", "MIG-none", state.GPUs[7].UUID} {
		refusesContexts(t, m, 1, visible(devices), "CUDA_ERROR_NO_DEVICE")
	}
	if d := openContexts(t, m, 1, &mig).Devices()[0]; d.ComputeCapability != 9 || d.MemoryBytes < 9<<30 || d.MemoryBytes > 10<<30 {
		t.Errorf("a MIG device is %+v to a process", d)
	}
}

func TestWhatHasContextsIsInUse(t *testing.T) {
	m := loadNode(t, "p5.48xlarge")
	s := openSession(t, m)
	d, _ := s.DeviceGetHandleByIndex(0)
	whole := openContexts(t, m, 4711, visible("0"))
	if list, ret := d.GetComputeRunningProcesses(); ret != nvml.SUCCESS || len(list) != 1 || list[0].Pid != 4711 {
		t.Errorf("the processes of the GPU are %v (%v)", list, ret)
	}
	if err := m.SetMIGMode(0, true); err == nil {
		t.Error("MIG was enabled under a process")
	}
	whole.Close()
	if err := m.SetMIGMode(0, true); err != nil {
		t.Error(err)
	}
	partition, err := m.CreateInstance(0, "1g.10gb", nil)
	if err != nil {
		t.Fatal(err)
	}
	part := openContexts(t, m, 4712, &partition.ComputeInstances[0].UUID)
	if err := m.DestroyInstance(0, partition.ID); err == nil {
		t.Error("a MIG instance was destroyed under a process")
	}
	state, err := m.State()
	if err != nil || len(state.GPUs[0].Processes) != 1 || state.GPUs[0].Processes[0].Device != partition.ComputeInstances[0].UUID ||
		!state.GPUs[0].Instances[0].InUse || state.GPUs[0].InUse {
		t.Errorf("the GPU is %+v (%v)", state.GPUs[0], err)
	}
	part.Close()
	if err := m.DestroyInstance(0, partition.ID); err != nil {
		t.Error(err)
	}
}

func TestContextsEndWithTheirGPU(t *testing.T) {
	for name, end := range map[string]func(*model.Machine) error{
		"lost":     func(m *model.Machine) error { return m.Lose(1) },
		"rebooted": (*model.Machine).Reboot,
	} {
		m := loadNode(t, "g5.12xlarge")
		c := openContexts(t, m, 1, visible("1"))
		if err := end(m); err != nil {
			t.Fatal(err)
		}
		select {
		case <-c.Ended():
		default:
			t.Errorf("contexts outlive their GPU, which is %s", name)
		}
	}
	m := loadNode(t, "g5.12xlarge")
	if err := m.Lose(1); err != nil {
		t.Fatal(err)
	}
	refusesContexts(t, m, 1, visible("1"), "CUDA_ERROR_DEVICE_UNAVAILABLE")
}
