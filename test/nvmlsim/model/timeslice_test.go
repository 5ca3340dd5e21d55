package model_test

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

func loadNode(t *testing.T, name string) *model.Machine {
	t.Helper()
	file, err := nodes.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func timesliceDevice(t *testing.T, s *model.Session, gpu int) model.TimesliceDevice {
	t.Helper()
	d, ret := s.DeviceGetHandleByIndex(gpu)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return d.(model.TimesliceDevice)
}

func setsTimeslice(t *testing.T, want nvml.Return, d model.TimesliceDevice, slice model.Timeslice) {
	t.Helper()
	if ret := d.SetTimeslice(slice); ret != want {
		t.Errorf("set the time slice %s: %v, want %v", slice, ret, want)
	}
}

func hasTimeslice(t *testing.T, m *model.Machine, gpu int, want string) {
	t.Helper()
	state, err := m.State()
	if err != nil || state.GPUs[gpu].Timeslice != want {
		t.Errorf("the time slice of GPU %d is %q (%v), want %q", gpu, state.GPUs[gpu].Timeslice, err, want)
	}
}

func openSession(t *testing.T, m *model.Machine, options ...model.SessionOption) *model.Session {
	t.Helper()
	s := m.NewSession(options...)
	t.Cleanup(s.Close)
	if ret := s.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return s
}

func TestTimesliceLastsUntilAReset(t *testing.T) {
	m := loadNode(t, "p5.48xlarge")
	d := timesliceDevice(t, openSession(t, m), 1)
	for name, end := range map[string]func() error{
		"a reset":     func() error { return m.Reset(1) },
		"a reboot":    m.Reboot,
		"MIG enabled": func() error { return errors.Join(m.SetMIGMode(1, true), m.SetMIGMode(1, false)) },
	} {
		setsTimeslice(t, nvml.SUCCESS, d, model.TimesliceLong)
		hasTimeslice(t, m, 1, "Long")
		hasTimeslice(t, m, 0, "Default")
		if err := end(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		hasTimeslice(t, m, 1, "Default")
	}
}

func TestTimesliceIsRefused(t *testing.T) {
	m := loadNode(t, "p5.48xlarge")
	setsTimeslice(t, nvml.ERROR_INVALID_ARGUMENT, timesliceDevice(t, openSession(t, m), 0), model.TimesliceLong+1)
	setsTimeslice(t, nvml.ERROR_NO_PERMISSION, timesliceDevice(t, openSession(t, m, model.Unprivileged()), 0), model.TimesliceShort)
	if err := m.SetMIGMode(0, true); err != nil {
		t.Fatal(err)
	}
	setsTimeslice(t, nvml.ERROR_NOT_SUPPORTED, timesliceDevice(t, openSession(t, m), 0), model.TimesliceShort)
	hasTimeslice(t, m, 0, "N/A")

	old := loadNode(t, "pascal")
	setsTimeslice(t, nvml.ERROR_NOT_SUPPORTED, timesliceDevice(t, openSession(t, old), 0), model.TimesliceDefault)
	if _, ret := timesliceDevice(t, openSession(t, old), 0).GetTimeslice(); ret != nvml.ERROR_NOT_SUPPORTED {
		t.Errorf("the time slice of a board before Volta: %v", ret)
	}
}

func TestTimesliceFailsWhereItIsTold(t *testing.T) {
	m := loadNode(t, "g6.xlarge")
	d := timesliceDevice(t, openSession(t, m), 0)
	for _, after := range []bool{false, true} {
		err := m.Fail(model.Failure{Function: "nvmlSimDeviceSetTimeslice", Return: nvml.ERROR_TIMEOUT, Times: 1, After: after})
		if err != nil {
			t.Fatal(err)
		}
		setsTimeslice(t, nvml.ERROR_TIMEOUT, d, model.TimesliceMedium)
		hasTimeslice(t, m, 0, map[bool]string{false: "Default", true: "Medium"}[after])
	}
}

func TestModesAreSetByRootAlone(t *testing.T) {
	d, ret := openSession(t, loadNode(t, "g6.xlarge"), model.Unprivileged()).DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := d.SetComputeMode(nvml.COMPUTEMODE_PROHIBITED); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("set the compute mode: %v", ret)
	}
	if ret := d.SetPersistenceMode(nvml.FEATURE_ENABLED); ret != nvml.ERROR_NO_PERMISSION {
		t.Errorf("set the persistence mode: %v", ret)
	}
}
