package abi_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"
)

// What guards an instance is there when the call that creates it returns, and
// gone when the one that destroys it does.
func TestCapabilityDevicesFollowTheInstances(t *testing.T) {
	d := start(t, "p5e.48xlarge").use() // where minors are not indices
	lib := initialised(t)
	third := device(t, lib, 2)
	_, ret := third.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	returns(t, "SetMigMode", nvml.SUCCESS, ret)
	gi, ret := third.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 14}, &nvml.GpuInstancePlacement{Start: 2, Size: 2})
	returns(t, "CreateGpuInstanceWithPlacement", nvml.SUCCESS, ret)
	of := filepath.Join(d.root, "proc/driver/nvidia/capabilities/gpu6/mig/gi4")
	const giMinor = 3 + 135*6 + 9*4
	capability(t, d, filepath.Join(of, "access"), giMinor)
	ci, ret := gi.CreateComputeInstance(&nvml.ComputeInstanceProfileInfo{Id: 1})
	returns(t, "CreateComputeInstance", nvml.SUCCESS, ret)
	capability(t, d, filepath.Join(of, "ci0", "access"), giMinor+1)

	returns(t, "Destroy", nvml.SUCCESS, ci.Destroy())
	noCapability(t, d, filepath.Join(of, "ci0"), giMinor+1)
	capability(t, d, filepath.Join(of, "access"), giMinor)
	returns(t, "Destroy", nvml.SUCCESS, gi.Destroy())
	noCapability(t, d, of, giMinor)
	if _, err := os.Stat(filepath.Dir(of)); err != nil {
		t.Errorf("the GPU's own directory: %v", err)
	}
}

func capability(t *testing.T, d *daemon, file string, minor int) {
	t.Helper()
	content, err := os.ReadFile(file)
	if want := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor); err != nil || string(content) != want {
		t.Errorf("%s is %q (%v), want %q", file, content, err, want)
	}
	var status unix.Stat_t
	if err := unix.Stat(filepath.Join(d.root, "dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor)), &status); err != nil {
		t.Errorf("the device of capability %d: %v", minor, err)
		return
	}
	if status.Mode != unix.S_IFCHR|0o444 || int(unix.Minor(uint64(status.Rdev))) != minor || unix.Major(uint64(status.Rdev)) != 511 {
		t.Errorf("the device of capability %d is %+v", minor, status)
	}
	if devices, err := os.ReadFile(filepath.Join(d.root, "proc/devices")); err != nil || !strings.Contains(string(devices), "511 nvidia-caps\n") {
		t.Errorf("/proc/devices is %q (%v)", devices, err)
	}
}

func noCapability(t *testing.T, d *daemon, dir string, minor int) {
	t.Helper()
	for _, path := range []string{dir, filepath.Join(d.root, "dev/nvidia-caps", fmt.Sprintf("nvidia-cap%d", minor))} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", path, err)
		}
	}
}

func TestNvidiaSMIListsMIGDevices(t *testing.T) {
	t.Parallel()
	d := start(t, "mig-static")
	state := d.state()
	all := state.GPUs[0].Instances // 3g.20gb, 2g.10gb and 1g.5gb
	gpuLine := func(index, of int) string {
		return fmt.Sprintf("GPU %d: NVIDIA A100-SXM4-40GB (UUID: %s)", index, state.GPUs[of].UUID)
	}
	line := func(profile string, index, of int) string {
		return fmt.Sprintf("  MIG %-11s Device %2d: (UUID: %s)", profile, index, all[of].ComputeInstances[0].UUID)
	}
	capabilities := func(of int) []int { return []int{all[of].Capability, all[of].ComputeInstances[0].Capability} }
	for _, test := range []struct {
		name         string
		minors       []int
		capabilities []int
		want         []string
	}{
		{"a GPU without its instances", []int{0}, nil, []string{gpuLine(0, 0)}},
		{"one instance", []int{0}, capabilities(1), []string{gpuLine(0, 0), line("2g.10gb", 0, 1)}},
		{"two instances", []int{0, 7}, append(capabilities(1), capabilities(2)...),
			[]string{gpuLine(0, 0), line("2g.10gb", 0, 1), line("1g.5gb", 1, 2), gpuLine(1, 7)}},
		{"an instance of a GPU that is not there", []int{7}, capabilities(1), []string{gpuLine(0, 7)}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if out, err := nvidiaSMIWith(t, d, test.minors, test.capabilities, "-L"); err != nil || out != strings.Join(test.want, "\n") {
				t.Errorf("nvidia-smi -L: %v\n%s\nwant\n%s", err, out, strings.Join(test.want, "\n"))
			}
		})
	}
	out, err := nvidiaSMI(t, d, nil, "-L")
	if err != nil || strings.Count(out, "  MIG ") != 8 || !strings.Contains(out, "\n  MIG 3g.20gb     Device  0: (UUID: MIG-") ||
		!strings.Contains(out, "\n  MIG 2c.4g.20gb  Device  0: (UUID: MIG-") {
		t.Errorf("nvidia-smi -L on the machine: %v\n%s", err, out)
	}
}

func TestMIGFromTheCommandLine(t *testing.T) {
	t.Parallel()
	d := start(t, "p4d.24xlarge")
	run := func(want string, arguments ...string) string {
		t.Helper()
		out, err := d.sim(arguments...)
		if failed := strings.HasPrefix(want, "nvml-sim: "); failed != (err != nil) || !strings.Contains(out, want) {
			t.Fatalf("nvml-sim %v: %v\n%s\nwant %q", arguments, err, out, want)
		}
		return out
	}
	run("", "mig", "mode", "3", "on")
	run("Disabled, pending Enabled", "status")
	run("nvml-sim: MIG is not enabled on GPU 3", "mig", "create", "3", "1g.5gb")
	run("", "reset", "3")
	id := run("MIG-", "mig", "create", "3", "3g.20gb@4")
	run(`nvml-sim: profile "2g.10gb" does not fit at 4 beside`, "mig", "create", "3", "2g.10gb@4")
	run("MIG-", "mig", "create", "3", "1g.5gb")
	run("4:4        "+id, "mig", "list")
	run(id, "status")
	run("", "mig", "occupy", "3", "1")
	run("in use", "mig", "list")
	run("nvml-sim: GPU instance 1 of GPU 3 is in use by a process", "mig", "destroy", "3", "1")
	run("nvml-sim: GPU 3 is in use by a process and cannot be reset", "reset", "3")
	run("", "mig", "vacate", "3", "1")
	run("", "mig", "destroy", "3", "1")
	run("nvml-sim: GPU 3 has no GPU instance 1; it has [7]", "mig", "destroy", "3", "1")
	run("", "mig", "occupy", "5")
	run("nvml-sim: GPU 5 is in use", "mig", "mode", "5", "on")
	run("", "fail", "nvmlGpuInstanceDestroy", "IN_USE", "--after", "--gpu", "3", "--times", "2")
	run("nvmlGpuInstanceDestroy fails with 19 (ERROR_IN_USE) after its effect on GPU 3, 2 more times", "status")
	run("", "latency", "nvmlGpuInstanceDestroy", "200ms", "--after")
	run("nvmlGpuInstanceDestroy takes 200ms after its effect", "status")
	run("", "reboot")
	run("Enabled", "status")
	if out := run("", "mig", "list"); strings.Contains(out, "MIG-") {
		t.Errorf("after a reboot there are\n%s", out)
	}
}

// TestNVCDIGeneratesAMIGSpec runs nvcdi where its path below /proc, which knows
// no driver root, leads into the tree.
func TestNVCDIGeneratesAMIGSpec(t *testing.T) {
	t.Parallel()
	d := start(t, "mig-static")
	gi := d.state().GPUs[0].Instances[1]
	const script = `
set -e
mount -t tmpfs none /proc/driver
cp -r "$1/proc/driver/nvidia-caps" /proc/driver/
exec "$2"
`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", d.root, os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=cdi "+d.root+" "+gi.ComputeInstances[0].UUID, "NVML_SIM_SOCKET="+d.socket())
	log := &lockedBuffer{} // nvcdi logs each file that a simulated driver lacks
	cmd.Stderr = log
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("nvcdi in a mount namespace of its own: %v\n%s\n%s", err, out, log)
	}
	same(t, "device nodes of the MIG device", strings.Fields(string(out)), []string{
		"/dev/nvidia0",
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi.Capability),
		fmt.Sprintf("/dev/nvidia-caps/nvidia-cap%d", gi.ComputeInstances[0].Capability),
	})
}
