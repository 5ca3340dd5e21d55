package model

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const partitioned = `
name: partitioned
driverVersion: "580.95.05"
cudaDriverVersion: "13.0"
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
			if ret := createSmall(d); ret != nvml.ERROR_NO_PERMISSION {
				t.Errorf("a container creates an instance: %v", ret)
			}
		})
	}
	privileged := initialised(t, m, VisibleMinors(6), VisibleCapabilities(ConfigCapability))
	if ret := createSmall(handle(t, privileged, 0)); ret != nvml.SUCCESS {
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

// createSmall creates a 1g.5gb beside the instances that GPU 0 has.
func createSmall(d nvml.Device) nvml.Return {
	_, ret := d.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 19}, &nvml.GpuInstancePlacement{Start: 1, Size: 1})
	return ret
}
