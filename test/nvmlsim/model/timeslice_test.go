package model_test

import (
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

func openSession(t *testing.T, m *model.Machine, options ...model.SessionOption) *model.Session {
	t.Helper()
	s := m.NewSession(options...)
	t.Cleanup(s.Close)
	if ret := s.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return s
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
