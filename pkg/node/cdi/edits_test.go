package cdi

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2/ktesting"
	"sigs.k8s.io/yaml"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/devnode"
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
	return rig{machine, root, NewEdits(fixture.Library(t, machine), roots, logger)}
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
			must(t, err)
			spec := cdispec.Spec{ContainerEdits: common}
			for _, index := range []int{0, 5} {
				own, err := r.edits.GPU(r.uuid(index))
				must(t, err)
				spec.Devices = append(spec.Devices, cdispec.Device{Name: fmt.Sprint("gpu-", index), ContainerEdits: own})
			}
			content, err := yaml.Marshal(spec)
			must(t, err)
			if strings.Contains(string(content), r.root) {
				t.Errorf("a path of this process, %s, is in the specification", r.root)
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
	must(t, r.machine.Lose(0))
	if _, err := r.edits.Common(); err != nil {
		t.Error(err)
	}
	if _, err := r.edits.GPU(r.uuid(0)); err != nil {
		t.Error(err)
	}
}

// A driver upgrade replaces the files of one version by those of another.
func TestEditsAreDerivedAnewWhenAFileVanishes(t *testing.T) {
	r, installed := newCompilerRig(t)
	must(t, os.Remove(installed))
	if r.mounts(t, compiler) {
		t.Errorf("%s is mounted although it is gone", installed)
	}
}

// Nothing but the directory tells that a file is gone, once the directory is left alone.
func TestEditsAreDerivedAnewWhenASettledDirectoryChanges(t *testing.T) {
	r, installed := newCompilerRig(t)
	settle := func(ago time.Duration) {
		t.Helper()
		before := time.Now().Add(-ago)
		for _, path := range r.edits.known[""].directories {
			must(t, os.Chtimes(path, before, before))
		}
	}
	settle(3 * settled)
	if !r.mounts(t, compiler) || r.edits.known[""].seen == nil {
		t.Error("the directories are not remembered")
	}
	must(t, os.Rename(filepath.Dir(installed), filepath.Dir(installed)+".old"))
	if _, err := r.edits.Common(); err == nil && r.mounts(t, compiler) {
		t.Errorf("%s is mounted although its directory is gone", installed)
	}
	must(t, os.Rename(filepath.Dir(installed)+".old", filepath.Dir(installed)))
	if !r.mounts(t, compiler) {
		t.Fatalf("%s is not mounted", installed)
	}
	settle(3 * settled)
	if !r.mounts(t, compiler) || r.edits.known[""].seen == nil {
		t.Error("the directories are not remembered")
	}
	must(t, os.Remove(installed))
	settle(2 * settled) // it was long ago
	if r.mounts(t, compiler) {
		t.Errorf("%s is mounted although it is gone", installed)
	}
}

const compiler = "usr/lib64/libnvidia-ptxjitcompiler.so"

// newCompilerRig has edits that mount the installed file of a compiler.
func newCompilerRig(t *testing.T) (r rig, installed string) {
	t.Helper()
	r = newRig(t, "g6.xlarge", "/run/nvidia/driver")
	installed = filepath.Join(r.root, compiler+"."+r.machine.File().DriverVersion)
	must(t, os.WriteFile(installed, nil, 0o755))
	if !r.mounts(t, compiler) {
		t.Fatalf("%s is not mounted", installed)
	}
	return r, installed
}

func (r rig) mounts(t *testing.T, library string) bool {
	t.Helper()
	common, err := r.edits.Common()
	must(t, err)
	return slices.ContainsFunc(common.Mounts, func(m *cdispec.Mount) bool {
		return strings.HasPrefix(m.HostPath, "/run/nvidia/driver/"+library)
	})
}

// No CUDA program starts without the control devices. The driver makes nvidia-uvm at the first
// use of CUDA.
func TestEditsWaitForControlDevices(t *testing.T) {
	for _, name := range controlDevices {
		r := newRig(t, "g6.xlarge", "/")
		node := filepath.Join(r.root, "dev", name)
		must(t, os.Rename(node, node+".later"))
		_, err := r.edits.Common()
		fixture.Sentence(t, err, "/dev/"+name+" is missing below /", "load the NVIDIA driver", "nvidia-modprobe")
		must(t, os.Rename(node+".later", node))
		common, err := r.edits.Common()
		if err != nil || !hasDeviceNode(common, name) {
			t.Errorf("edits with %s: %t (%v), although it is there", name, hasDeviceNode(common, name), err)
		}
	}
}

// A driver root without device nodes, as on COS, has them in the host's /dev.
func TestEditsOfDeviceNodesOfTheHost(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/home/kubernetes/bin/nvidia")
	machine := t.TempDir()
	r.edits.roots.Machine = devnode.Host(machine)
	must(t, os.Rename(filepath.Join(r.root, "dev"), filepath.Join(machine, "dev")))
	common, err := r.edits.Common()
	must(t, err)
	own, err := r.edits.GPU(r.uuid(0))
	must(t, err)
	for _, node := range append(common.DeviceNodes, own.DeviceNodes...) {
		if path := hostPath(node); path != filepath.Join("/dev", filepath.Base(path)) {
			t.Errorf("%s is brought from %s, which is not on the host", node.Path, path)
		}
	}
}

// The driver's library makes device nodes in the private /dev of the plugin's
// container. The runtime would look for them on the host, for ever.
func TestEditsDoNotTakePrivateDeviceNodes(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/")
	private := filepath.Join(t.TempDir(), "dev")
	must(t, os.Rename(filepath.Join(r.root, "dev"), private))
	inContainerWith(t, private, func() {
		if !exists("/dev/nvidiactl") {
			t.Error("the private /dev has no nodes: this tests nothing")
		}
		_, err := r.edits.Common()
		fixture.Sentence(t, err, "/dev/nvidiactl is missing below /", "nvidia-modprobe")
		_, err = r.edits.GPU(r.uuid(0))
		fixture.Sentence(t, err, r.uuid(0), "below /", "nvidia-smi")
	})
}

// inContainerWith runs f where the directory is /dev, in a mount namespace that
// ends with f.
func inContainerWith(t *testing.T, dev string, f func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // for ever: no other goroutine may get this thread
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount(dev, "/dev", "", unix.MS_BIND, "")
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal("enter a mount namespace: ", err)
	}
}

func TestEditsOfAGPUWithoutItsDeviceNode(t *testing.T) {
	r := newRig(t, "g5.12xlarge", "/")
	node := filepath.Join(r.root, "dev", fmt.Sprint("nvidia", r.machine.GPUs()[1].Minor))
	if _, err := r.edits.GPU(r.uuid(1)); err != nil {
		t.Fatal(err)
	}
	must(t, os.Remove(node))
	_, err := r.edits.GPU(r.uuid(1))
	fixture.Sentence(t, err, r.uuid(1), "below /", "nvidia-smi")
	if _, err := r.edits.GPU(r.uuid(2)); err != nil {
		t.Errorf("another GPU: %v", err)
	}
}

func TestEditsOfAGPUThatIsNotThere(t *testing.T) {
	r := newRig(t, "g6.xlarge", "/")
	_, err := r.edits.GPU("GPU-00000000-0000-0000-0000-000000000000")
	fixture.Sentence(t, err, "find the device nodes of GPU GPU-00000000-0000-0000-0000-000000000000")
}
