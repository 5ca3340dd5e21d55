package nvml_test

import (
	"errors"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func TestTheComputeMode(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	for _, mode := range []string{nvml.ExclusiveProcess, nvml.Prohibited, nvml.DefaultComputeMode, nvml.ExclusiveProcess} {
		must(t, library.SetComputeMode(uuid, mode))
		if got, err := library.ComputeMode(uuid); err != nil || got != mode {
			t.Errorf("got %q, %v, want %q", got, err, mode)
		}
	}
	if got, err := library.ComputeMode(machine.GPUs()[1].UUID); err != nil || got != nvml.DefaultComputeMode {
		t.Errorf("another GPU: got %q, %v, want %q", got, err, nvml.DefaultComputeMode)
	}
	// NVML's own names of the numbers, which the simulator has from its header.
	session := machine.NewSession()
	t.Cleanup(session.Close)
	if ret := session.Init(); ret != gonvml.SUCCESS {
		t.Fatal(ret)
	}
	handle, _ := session.DeviceGetHandleByUUID(uuid)
	if got, ret := handle.GetComputeMode(); ret != gonvml.SUCCESS || got != gonvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
		t.Errorf("NVML has the mode %d, %v, want %d", got, ret, gonvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	}
}

func TestComputeModesThatAreRefused(t *testing.T) {
	machine, library, uuid := partitionable(t, "p5.48xlarge")
	fixture.Sentence(t, library.SetComputeMode(uuid, "exclusive"), uuid, `"exclusive"`, "choose one of Default, ExclusiveThread, Prohibited, ExclusiveProcess")
	err := library.SetComputeMode(uuid, nvml.ExclusiveThread)
	fixture.Sentence(t, err, "set the compute mode ExclusiveThread of "+uuid)
	if !errors.Is(err, nvml.ErrNotSupported) {
		t.Errorf("got %v, want %v", err, nvml.ErrNotSupported)
	}
	must(t, library.SetMIG(uuid, true))
	if err := library.SetComputeMode(uuid, nvml.ExclusiveProcess); !errors.Is(err, nvml.ErrNotSupported) {
		t.Errorf("with MIG enabled: got %v, want %v", err, nvml.ErrNotSupported)
	}
	if _, err := library.ComputeMode("GPU-elsewhere"); !errors.Is(err, nvml.ErrGPULost) {
		t.Errorf("got %v of a GPU that is not there, want %v", err, nvml.ErrGPULost)
	}
	must(t, machine.Fail(model.Failure{Function: "nvmlDeviceGetComputeMode", Return: gonvml.ERROR_GPU_IS_LOST}))
	_, err = library.ComputeMode(uuid)
	fixture.Sentence(t, err, "read the compute mode of "+uuid)
	if !errors.Is(err, nvml.ErrGPULost) {
		t.Errorf("got %v, want %v", err, nvml.ErrGPULost)
	}
}
