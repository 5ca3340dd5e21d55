package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/yaml"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// rig is a simulated machine with its driver root.
type rig struct {
	machine *model.Machine
	root    string
	edits   *Edits
}

func newRig(t *testing.T, name, host string) rig {
	t.Helper()
	machine := fixture.Machine(t, fixture.File(t, name))
	root := fixture.DriverRoot(t, machine)
	logger, _ := ktesting.NewTestContext(t)
	roots := Roots{Host: host, Local: root, Hook: "/plugins/nvidia-cdi-hook"}
	return rig{machine, root, NewEdits(fixture.Library(t, machine).API(), roots, logger)}
}

func (r rig) uuid(index int) string { return r.machine.GPUs()[index].UUID }

// The golden file is what a container of a claim for two GPUs gets.
func TestEditsOfASimulatedDriver(t *testing.T) {
	for name, tc := range map[string]struct {
		host  string
		batch bool
	}{
		"driver-on-the-host":           {"/", true},
		"driver-in-container":          {"/run/nvidia/driver", true},
		"driver-with-NVIDIAs-own-hook": {"/run/nvidia/driver", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "p5.48xlarge", tc.host)
			r.edits.roots.Batch = tc.batch
			common, err := r.edits.Common()
			if err != nil {
				t.Fatal(err)
			}
			spec := cdispec.Spec{ContainerEdits: common}
			for _, index := range []int{0, 5} {
				own, err := r.edits.GPU(r.uuid(index))
				if err != nil {
					t.Fatal(err)
				}
				spec.Devices = append(spec.Devices, cdispec.Device{Name: fmt.Sprint("gpu-", index), ContainerEdits: own})
			}
			content, err := yaml.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(content), r.root) {
				t.Errorf("a path of this process, %s, is told to the runtime", r.root)
			}
			fixture.Golden(t, name+".yaml", string(content))
		})
	}
}

func TestEditsAreDerivedOnce(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/")
	if _, err := r.edits.Common(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.edits.GPU(r.uuid(0)); err != nil {
		t.Fatal(err)
	}
	// What is remembered needs no NVML: the GPU can even be lost.
	if err := r.machine.Lose(0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.edits.Common(); err != nil {
		t.Error(err)
	}
	if _, err := r.edits.GPU(r.uuid(0)); err != nil {
		t.Error(err)
	}
}

// A driver upgrade replaces the files of one version by those of another.
func TestEditsAreDerivedAnewWhenAFileVanishes(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/run/nvidia/driver")
	const compiler = "usr/lib64/libnvidia-ptxjitcompiler.so"
	installed := filepath.Join(r.root, compiler+"."+r.machine.File().DriverVersion)
	if err := os.WriteFile(installed, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if !r.mounts(t, compiler) {
		t.Fatalf("%s is not mounted", installed)
	}
	if err := os.Remove(installed); err != nil {
		t.Fatal(err)
	}
	if r.mounts(t, compiler) {
		t.Errorf("%s is mounted although it is gone", installed)
	}
}

func (r rig) mounts(t *testing.T, library string) bool {
	t.Helper()
	common, err := r.edits.Common()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(common.Mounts, func(m *cdispec.Mount) bool {
		return strings.HasPrefix(m.HostPath, "/run/nvidia/driver/"+library)
	})
}

// The driver makes nvidia-uvm at the first use of CUDA: edits without it must
// not be remembered.
func TestEditsFollowTheLastDeviceNode(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/")
	node := filepath.Join(r.root, "dev/nvidia-uvm")
	if err := os.Rename(node, node+".later"); err != nil {
		t.Fatal(err)
	}
	for _, made := range []bool{false, true} {
		if made {
			if err := os.Rename(node+".later", node); err != nil {
				t.Fatal(err)
			}
		}
		common, err := r.edits.Common()
		if err != nil {
			t.Fatal(err)
		}
		if got := hasDeviceNode(common, "nvidia-uvm"); got != made {
			t.Errorf("edits have nvidia-uvm: %t; it is there: %t", got, made)
		}
	}
}

func TestEditsOfAGPUWithoutItsDeviceNode(t *testing.T) {
	r := newRig(t, "g5.12xlarge", "/")
	node := filepath.Join(r.root, "dev", fmt.Sprint("nvidia", r.machine.GPUs()[1].Minor))
	if _, err := r.edits.GPU(r.uuid(1)); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(node); err != nil {
		t.Fatal(err)
	}
	_, err := r.edits.GPU(r.uuid(1))
	fixture.Sentence(t, err, r.uuid(1), "below /")
	if _, err := r.edits.GPU(r.uuid(2)); err != nil {
		t.Errorf("another GPU: %v", err)
	}
}

func TestEditsOfAGPUThatIsNotThere(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/")
	_, err := r.edits.GPU("GPU-00000000-0000-0000-0000-000000000000")
	fixture.Sentence(t, err, "find the device nodes of GPU GPU-00000000-0000-0000-0000-000000000000")
}

// Without /dev/nvidiactl no CUDA program starts, so the claim must not, either.
// A driver root without device nodes uses those of the host.
func TestEditsNeedTheControlDevice(t *testing.T) {
	if exists("/dev/nvidiactl") {
		t.Skip("this machine has an NVIDIA driver of its own")
	}
	r := newRig(t, "g6.xlarge", "/run/nvidia/driver")
	if err := os.Remove(filepath.Join(r.root, "dev/nvidiactl")); err != nil {
		t.Fatal(err)
	}
	_, err := r.edits.Common()
	fixture.Sentence(t, err, "/dev/nvidiactl is missing", "load the NVIDIA driver", "nvidia-modprobe")
}
