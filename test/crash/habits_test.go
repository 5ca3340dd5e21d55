package crash_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// withHabits is a machine with 8 H100 that starts with habits, or otherwise changed.
func withHabits(t *testing.T, habits string, changes ...string) *node {
	t.Helper()
	content, err := os.ReadFile("../nvmlsim/nodes/p5.48xlarge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(changes...).Replace(string(content))
	if len(changes) > 0 && text == string(content) {
		t.Fatalf("the machine's file has none of %q", changes)
	}
	file := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%shabits: %s\n", text, habits), 0o644); err != nil {
		t.Fatal(err)
	}
	return newMachine(t, file)
}

// says waits until the plugin has said all of it.
func (p *plugin) says(n *node, parts ...string) {
	n.Helper()
	fixture.Eventually(n, fmt.Sprintf("the plugin says %q", parts), func() error {
		for _, part := range parts {
			if !strings.Contains(p.log.String(), part) {
				return fmt.Errorf("it has not said %q", part)
			}
		}
		return nil
	})
}

// ends waits until the plugin ends by itself.
func (p *plugin) ends(n *node) {
	n.Helper()
	if err := p.Wait(); err == nil || p.ProcessState.ExitCode() != 1 {
		n.Errorf("the plugin ended with %v", err)
	}
}

func (n *node) setDriver(d model.Driver) {
	n.Helper()
	n.must(n.gpu.SetDriver(d))
}

const (
	version      = "580.95.05"
	otherVersion = "570.172.08"
)

// The plugin waits for a driver that comes after it, in two steps.
func TestDriverThatComesLater(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{driver: {library: none, module: none}}")
	p := n.reach(n.run("kubelet-plugin", n.arguments(n.driver)...))
	p.says(n, "This node offers no GPU for now", "libnvidia-ml.so.1 is in none of the library directories")
	n.setDriver(model.Driver{Library: version})
	p.says(n, "Driver Not Loaded", "load it with modprobe nvidia")
	n.setDriver(model.Driver{Module: version})
	p.says(n, "Offering GPUs", "gpus=8")
	claim := n.put("c", small)
	fixture.Eventually(t, "the claim is prepared", func() error { return p.prepare(n.within(), claim) })
}

// Pods end on a node whose driver was taken away, and start again when it is back.
func TestClaimsOutliveTheDriver(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{}")
	p := n.start()
	whole, partition := n.put("whole", "gpu-1"), n.put("partition", small)
	n.must(errors.Join(p.prepare(n.within(), whole), p.prepare(n.within(), partition)))
	p.kill()
	fixture.Eventually(t, "the driver is unloaded", func() error {
		return n.gpu.SetDriver(model.Driver{Library: model.NoDriver, Module: model.NoDriver})
	})
	p = n.reach(n.run("kubelet-plugin", n.arguments(n.driver)...))
	p.says(n, "This node offers no GPU for now")
	for _, claim := range []*resourceapi.ResourceClaim{whole, partition} {
		fixture.Eventually(t, "the claim of a pod that ends is unprepared", func() error { return p.unprepare(n.within(), claim) })
	}
	if err := p.prepare(n.within(), whole); err == nil {
		t.Error("a claim was prepared without a driver")
	}
	n.remove(partition)
	n.setDriver(model.Driver{Library: version, Module: version})
	p.says(n, "Offering GPUs", "gpus=8")
	n.must(p.prepare(n.within(), whole))
	n.must(p.prepare(n.within(), n.put("next", small)))
}

// A library that does not fit the kernel module is waited for; one that fits comes as
// another file, which only a new process can load.
func TestDriverWhoseLibraryDoesNotFit(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{driver: {module: "+otherVersion+"}}")
	p := n.reach(n.run("kubelet-plugin", n.arguments(n.driver)...))
	p.says(n, "This node offers no GPU for now", "Driver/library version mismatch", "reboot the node")
	n.setDriver(model.Driver{Library: otherVersion})
	p.ends(n)
	p.says(n, "is not the file that this process has loaded")
	n.start().says(n, "Offering GPUs", otherVersion)
}

// A GPU that is lost at the start is left out until it comes back.
func TestGPUThatIsLostAtTheStart(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{}", "minor: 3}", "minor: 3, presence: lost}")
	p := n.start()
	p.says(n, "Cannot read a GPU, so it gets no claims", "GPU is lost", "gpus=7")
	n.must(p.prepare(n.within(), n.put("c", "gpu-0")))
	if err := p.prepare(n.within(), n.put("lost", "gpu-3")); err == nil || !strings.Contains(err.Error(), "gpu-3") {
		t.Errorf("the lost GPU was prepared: %v", err)
	}
	n.must(n.gpu.Return(3))
	p.says(n, "gpus=8")
	n.must(p.prepare(n.within(), n.put("returned", "gpu-3")))
}

// GPUs that come after the plugin, and a fabric manager that is done after it, are noticed by it.
func TestAGPUAndAFabricThatComeLate(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{fabric: inProgress}", "minor: 3}", "minor: 3, presence: absent}")
	p := n.start()
	p.says(n, "gpus=7", "GPUs are tainted until the fabric manager has finished", "gpu-0 (InProgress)")
	if err := p.prepare(n.within(), n.put("early", "gpu-3")); err == nil || !strings.Contains(err.Error(), "gpu-3") {
		t.Errorf("a GPU that is not there was prepared: %v", err)
	}
	n.must(errors.Join(n.gpu.SetFabric(model.FabricCompleted), n.gpu.Attach(3)))
	p.says(n, "gpus=8", "The fabric manager has finished with all GPUs")
	n.must(p.prepare(n.within(), n.put("late", "gpu-3")))
}

// A metrics exporter with handles of all GPUs is in the way of nothing on Hopper.
func TestPartitionsBesideAnExporter(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{clientsHold: true}")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), exporter+"="+n.path("root"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	input, err := cmd.StdinPipe()
	n.must(err)
	n.must(cmd.Start())
	t.Cleanup(func() { n.must(errors.Join(input.Close(), cmd.Wait())) })
	fixture.Eventually(t, "the exporter", func() error {
		state, err := n.gpu.State()
		if err == nil && state.GPUs[7].Clients == 0 {
			err = errors.New("it holds no GPU")
		}
		return err
	})
	p := n.start()
	claim := n.put("c", small, elsewhere)
	n.must(p.prepare(n.within(), claim))
	n.must(p.unprepare(n.within(), claim))
	n.must(p.prepare(n.within(), n.put("whole", "gpu-0")))
}

// The driver of a driver container is mounted after the plugin has started, unmounted
// under it, and mounted anew by the next container: in a mount namespace of its own, which
// stands for the machine, and in those below it, which stand for the plugin's containers.
func TestDriverContainer(t *testing.T) {
	t.Parallel()
	n, next := newNode(t), newNode(t)
	n.must(os.Mkdir(n.path("run"), 0o755))
	host := n.inNamespace()
	plugin := "unshare --mount --propagation slave " + filepath.Join(binaries, "kubelet-plugin") + " " + strings.Join(n.arguments(n.path("run/driver")), " ") + " &"
	mount := func(root string) string { return "mount --bind " + root + " " + n.path("run/driver") }
	host.does("mount -t tmpfs none "+n.path("run"), "mount --make-shared "+n.path("run"), "mkdir "+n.path("run/driver"), plugin)
	p := n.reach(host.process)
	p.says(n, "libnvidia-ml.so.1 is in none of the library directories")
	host.does(mount(n.path("root")))
	p.says(n, "Offering GPUs", "gpus=8")
	claim := n.put("c", "gpu-0")
	fixture.Eventually(t, "the claim is prepared", func() error { return p.prepare(n.within(), claim) })
	host.does("umount --lazy --recursive " + n.path("run/driver")) // as k8s-driver-manager detaches it
	p.says(n, "is gone, as when the NVIDIA driver is upgraded")

	host.does(mount(next.path("root")), "wait || true", plugin)
	fixture.Eventually(t, "the next plugin offers the next driver's GPUs", func() error {
		if count := strings.Count(p.log.String(), "Offering GPUs"); count < 2 {
			return fmt.Errorf("GPUs were offered %d times", count)
		}
		return p.unprepare(n.within(), claim)
	})
}

// NVML makes the device nodes in the plugin's private /dev. No claim is prepared until
// the host has them all.
func TestDeviceNodesThatOnlyThePluginHas(t *testing.T) {
	t.Parallel()
	n := withHabits(t, "{deviceNodes: onOpen}")
	private, dev := n.path("private"), n.path("root/dev")
	n.must(os.MkdirAll(dev, 0o755))
	host := n.inNamespace()
	host.does("mkdir "+private, "mknod "+private+"/null c 1 3", "mount --bind "+private+" /dev",
		filepath.Join(binaries, "kubelet-plugin")+" "+strings.Join(n.arguments(n.driver), " ")+" &")
	p := n.reach(host.process)
	p.says(n, "Offering GPUs", "gpus=8")
	if _, err := os.Stat(filepath.Join(private, "nvidiactl")); err != nil {
		t.Errorf("the plugin's own /dev has no nodes: this tests nothing: %v", err)
	}
	claim := n.put("c", "gpu-0")
	refused := func(sentence string) {
		t.Helper()
		fixture.Eventually(t, "a refusal", func() error {
			if err := p.prepare(n.within(), claim); err == nil || !strings.Contains(err.Error(), sentence) {
				return fmt.Errorf("the claim's answer is %w", err)
			}
			return nil
		})
	}
	refused("device node /dev/nvidiactl is missing")
	host.does("NVML_SIM_DEV=" + dev + " " + n.path("root/usr/bin/nvidia-smi") + " -L >" + n.path("out"))
	refused("device node /dev/nvidia-uvm is missing")
	host.does("mknod " + dev + "/nvidia-uvm c 510 0")
	fixture.Eventually(t, "the claim is prepared", func() error { return p.prepare(n.within(), claim) })
}

// machine is a shell in a mount namespace of its own.
type machine struct {
	*process
	node     *node
	commands io.Writer
}

func (n *node) inNamespace() machine {
	n.Helper()
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-c", `set -e; while read -r command; do eval "$command"; done`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p := &process{Cmd: cmd}
	cmd.Stderr = &p.log
	commands, err := cmd.StdinPipe()
	n.must(err)
	n.must(cmd.Start())
	n.Cleanup(func() {
		p.kill()
		if n.Failed() {
			n.Logf("the machine:\n%s", p.log.String())
		}
	})
	return machine{p, n, commands}
}

func (m machine) does(commands ...string) {
	m.node.Helper()
	_, err := fmt.Fprintln(m.commands, strings.Join(commands, "\n"))
	m.node.must(err)
}
