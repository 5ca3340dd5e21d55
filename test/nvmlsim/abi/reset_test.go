package abi_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

func TestAReset(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	if err := d.control().SetCondition(1, model.Condition{RecoveryAction: "gpu-reset", RemapPending: true}); err != nil {
		t.Fatal(err)
	}
	g := d.state().GPUs[1]
	if out, status := d.smi("--gpu-reset", "-i", g.UUID); status != 0 || !strings.Contains(out, strings.ToUpper(g.PCIBusID[5:])+" was successfully reset.") {
		t.Errorf("status %d\n%s", status, out)
	}
	if got := d.state().GPUs[1].Condition; got != (model.Condition{}) {
		t.Errorf("after its reset the GPU is %+v", got)
	}
	if err := d.control().Occupy(1, nil, true); err != nil {
		t.Fatal(err)
	}
	if out, status := d.smi("--gpu-reset", "-i", g.UUID); status != 255 || !strings.Contains(out, "In use by another client") {
		t.Errorf("of a GPU that is in use: status %d\n%s", status, out)
	}
	if err := d.control().Lose(2); err != nil {
		t.Fatal(err)
	}
	if out, status := d.smi("--gpu-reset", "-i", "2"); status == 0 {
		t.Errorf("of a lost GPU: status %d\n%s", status, out)
	}
}

// Ampere's GPUs are reset alone only where the fabric manager runs, Hopper's always.
func TestAResetBesideNVLinkPeers(t *testing.T) {
	t.Parallel()
	for machine, alone := range map[string]bool{"p4d.24xlarge": false, "p5.48xlarge": true} {
		d := start(t, machine)
		if err := d.control().SetFabric(model.FabricInProgress); err != nil {
			t.Fatal(err)
		}
		if out, status := d.smi("--gpu-reset", "-i", "0"); (status == 0) != alone || strings.Contains(out, "in the same command") == alone {
			t.Errorf("%s without its fabric manager: status %d\n%s", machine, status, out)
		}
		if err := d.control().SetFabric(model.FabricCompleted); err != nil {
			t.Fatal(err)
		}
		if out, status := d.smi("--gpu-reset", "-i", "0"); status != 0 {
			t.Errorf("%s: status %d\n%s", machine, status, out)
		}
	}
}

// A client of NVML and persistence mode hold a GPU, where clients do.
func TestAResetOfAGPUThatClientsHold(t *testing.T) {
	d := start(t, withHabits(t, "g5.12xlarge", "{clientsHold: true}")).use()
	library := nvml.New(nvml.WithLibraryPath(filepath.Join(d.root, "usr/lib64/libnvidia-ml.so.1")))
	if ret := library.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	device, ret := library.DeviceGetHandleByIndex(0)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := device.SetPersistenceMode(nvml.FEATURE_ENABLED); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	refused := func(why string) {
		t.Helper()
		if out, status := d.smi("--gpu-reset", "-i", "0"); status != 255 || !strings.Contains(out, "In use by another client") {
			t.Errorf("%s: status %d\n%s", why, status, out)
		}
	}
	refused("of a GPU with a client")
	if ret := library.Shutdown(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	refused("with persistence mode")
	if ret := library.Init(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if device, ret = library.DeviceGetHandleByIndex(0); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := device.SetPersistenceMode(nvml.FEATURE_DISABLED); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if ret := library.Shutdown(); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	if out, status := d.smi("--gpu-reset", "-i", "0"); status != 0 {
		t.Errorf("of a free GPU: status %d\n%s", status, out)
	}
}
