package abi_test

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

func TestDeviceNodes(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"p5.48xlarge", "g5.12xlarge", "mixed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := start(t, name)
			node, err := nodes.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string][2]uint32{"null": {1, 3}, "nvidiactl": {195, 255}, "nvidia-modeset": {195, 254}, "nvidia-uvm": {510, 0}, "nvidia-uvm-tools": {510, 1}}
			for _, g := range node.GPUs {
				want[fmt.Sprintf("nvidia%d", g.Minor)] = [2]uint32{195, uint32(g.Minor)}
			}
			for name, number := range want {
				var status unix.Stat_t
				if err := unix.Stat(filepath.Join(d.root, "dev", name), &status); err != nil {
					t.Errorf("/dev/%s: %v", name, err)
					continue
				}
				rdev := uint64(status.Rdev)
				if got := [2]uint32{unix.Major(rdev), unix.Minor(rdev)}; got != number || status.Mode != unix.S_IFCHR|0o666 {
					t.Errorf("/dev/%s has number %v and mode %o, want %v", name, got, status.Mode, number)
				}
			}
			entries, err := os.ReadDir(filepath.Join(d.root, "dev"))
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if _, known := want[e.Name()]; !known && e.Name() != "nvidia-caps" && e.Name() != "shm" {
					t.Errorf("/dev/%s should not be there", e.Name())
				}
			}
		})
	}
}

func TestSysfsPlacesGPUs(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"p4d.24xlarge", "g5.12xlarge", "mixed"} {
		d := start(t, name)
		node, err := nodes.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		sysfs := deviceattribute.WithFS(os.DirFS(filepath.Join(d.root, "sys")).(fs.ReadLinkFS))
		for _, g := range node.GPUs {
			root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIBusID, sysfs)
			if err != nil || *root.Value.StringValue != g.PCIRoot {
				t.Errorf("%s: %+v is below the PCIe root %+v (%v)", name, g, root, err)
			}
			numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCIBusID, deviceattribute.ScalarAttribute, sysfs)
			if err != nil || *numa.Value.IntValue != int64(g.NUMANode) {
				t.Errorf("%s: %+v is on the NUMA node %+v (%v)", name, g, numa, err)
			}
		}
	}
}

// The tree has what the kernel and udev show of a GPU that comes and goes.
func TestTreeFollowsGPUs(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	of := []string{"dev/nvidia7", "proc/driver/nvidia/gpus/0000:ca:00.0/information", "proc/driver/nvidia/capabilities/gpu7/mig",
		"sys/bus/pci/devices/0000:ca:00.0/numa_node"}
	here := func(want bool) {
		t.Helper()
		for _, name := range of {
			if _, err := os.Stat(filepath.Join(d.root, name)); (err == nil) != want {
				t.Errorf("/%s: %v, want it to be there: %t", name, err, want)
			}
		}
	}
	here(true)
	for _, command := range []string{"detach", "attach"} {
		if out, err := d.sim(command, "7"); err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		here(command == "attach")
	}
	if out, err := d.sim("attach", "7"); err == nil || !strings.Contains(out, "is present, so that it cannot become present") {
		t.Errorf("attach once more: %v\n%s", err, out)
	}
}

func TestStopRemovesTheTree(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	d.stop()
	if _, err := os.Lstat(d.root); !os.IsNotExist(err) {
		t.Errorf("the driver root is still there: %v", err)
	}
}

// nvidiaSMI is the stand-in, run as in a container that has the device nodes of
// the GPUs with the given minors; none for a process on the machine.
func nvidiaSMI(t *testing.T, d *daemon, minors []int, arguments ...string) (string, error) {
	t.Helper()
	return nvidiaSMIWith(t, d, minors, nil, arguments...)
}

// nvidiaSMIWith also has the capability devices with the given minors.
func nvidiaSMIWith(t *testing.T, d *daemon, minors, capabilities []int, arguments ...string) (string, error) {
	t.Helper()
	dev := t.TempDir()
	if minors != nil {
		mknod(t, filepath.Join(dev, "nvidiactl"), 255)
	}
	for _, minor := range minors {
		mknod(t, filepath.Join(dev, fmt.Sprintf("nvidia%d", minor)), minor)
	}
	if err := os.Mkdir(filepath.Join(dev, "nvidia-caps"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, minor := range capabilities {
		mknod(t, filepath.Join(dev, "nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor)), minor)
	}
	cmd := exec.Command(filepath.Join(d.root, "usr/bin/nvidia-smi"), arguments...)
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=", "NVML_SIM_DEV="+dev)
	return output(cmd)
}

func mknod(t *testing.T, path string, minor int) {
	t.Helper()
	if err := unix.Mknod(path, syscall.S_IFCHR|0o666, int(unix.Mkdev(195, uint32(minor)))); err != nil {
		t.Fatalf("make the device node %s: %v", path, err)
	}
}

func TestNvidiaSMI(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	state := d.state()
	line := func(index int, g model.GPUState) string {
		return fmt.Sprintf("GPU %d: NVIDIA H100 80GB HBM3 (UUID: %s)", index, g.UUID)
	}
	var all []string
	for i, g := range state.GPUs {
		all = append(all, line(i, g))
	}
	for _, test := range []struct {
		name   string
		minors []int
		want   string
	}{
		{"on the machine", nil, strings.Join(all, "\n")},
		{"in a container with one GPU", []int{5}, line(0, state.GPUs[5])},
		{"in a container with two GPUs", []int{6, 2}, line(0, state.GPUs[2]) + "\n" + line(1, state.GPUs[6])},
	} {
		t.Run(test.name, func(t *testing.T) {
			if out, err := nvidiaSMI(t, d, test.minors, "-L"); err != nil || out != test.want {
				t.Errorf("nvidia-smi -L: %v\n%s\nwant\n%s", err, out, test.want)
			}
		})
	}
	if out, err := nvidiaSMI(t, d, []int{}, "-L"); err == nil || out != "No devices found." {
		t.Errorf("nvidia-smi -L in a container without a GPU: %v\n%s", err, out)
	}
	if out, err := nvidiaSMI(t, d, nil, "--version"); err != nil || !strings.Contains(out, "simulator") || !strings.Contains(out, "580.95.05") {
		t.Errorf("nvidia-smi --version: %v\n%s", err, out)
	}
	for arguments, want := range map[string]string{
		"": "Driver Version: 580.95.05      CUDA Version: 13.0 ",
		"--query-gpu=uuid,driver_version,memory.total,utilization.gpu --format=csv": "uuid, driver_version, memory.total [MiB], utilization.gpu [%]\n" +
			state.GPUs[5].UUID + ", 580.95.05, 81559 MiB, 0 %",
		"--query-gpu=gpu_name,memory.total,compute_mode,mig.mode.current --format=csv,noheader,nounits": "NVIDIA H100 80GB HBM3, 81559, Default, Disabled",
		"-i 0 --format=csv,noheader --query-gpu=index,pci.bus_id":                                       "0, ",
		"--query-gpu=wheels --format=csv":                                                               `Field "wheels" is not a valid field to query.`,
		"--query-gpu=index --format=xml":                                                                "needs --format=csv",
		"-i 7 --query-gpu=index --format=csv":                                                           "has no GPU 7",
	} {
		if out, _ := nvidiaSMI(t, d, []int{5}, strings.Fields(arguments)...); !strings.Contains(out, want) {
			t.Errorf("nvidia-smi %s:\n%s\nwant\n%s", arguments, out, want)
		}
	}
	if out, err := nvidiaSMI(t, d, nil, "-q"); err == nil || !strings.Contains(out, "stand-in") {
		t.Errorf("nvidia-smi -q: %v\n%s", err, out)
	}
	d.kill()
	if out, err := nvidiaSMI(t, d, nil, "-L"); err == nil || !strings.Contains(out, "couldn't communicate with the NVIDIA driver") {
		t.Errorf("nvidia-smi -L without a driver: %v\n%s", err, out)
	}
}

// TestInAContainer does what a container runtime does with the mounts of the
// specification that nvcdi writes, and starts the tool among them.
func TestInAContainer(t *testing.T) {
	t.Parallel()
	d := start(t, "g5.12xlarge")
	const script = `
set -e
mount -t tmpfs -o mode=755 none /run
mkdir /run/lib /run/nvidia-persistenced
for f in libnvidia-ml.so.1 libcuda.so.1; do
	touch /run/lib/$f
	mount --bind -o ro,nosuid,nodev "$1/usr/lib64/$f" /run/lib/$f
done
touch /run/nvidia-persistenced/socket
mount --bind "$1/run/nvidia-persistenced/socket" /run/nvidia-persistenced/socket
mount -o remount,bind,ro,nosuid,nodev,noexec /run/nvidia-persistenced/socket
cp "$1/usr/bin/nvidia-smi" /run/nvidia-smi
export LD_LIBRARY_PATH=/run/lib
/run/nvidia-smi -L
exec "$2" xid 0 79 --socket /run/nvidia-persistenced/socket
`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", d.root, filepath.Join(binaries, "nvml-sim"))
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=")
	out, err := output(cmd)
	if strings.Count(out, "GPU ") < 4 || !strings.Contains(out, "GPU 3: NVIDIA A10G (UUID: GPU-") {
		t.Errorf("the tool in a container ended with %v:\n%s", err, out)
	}
	if err == nil || !strings.Contains(out, "did not answer the control call") {
		t.Errorf("a container could make things happen to the machine (%v):\n%s", err, out)
	}
}
