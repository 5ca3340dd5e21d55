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
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// partition creates a GPU instance, as the role of another process.
func partition(device nvml.Device) nvml.Return {
	if _, ret := device.SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		return ret
	}
	_, ret := device.CreateGpuInstance(&nvml.GpuInstanceProfileInfo{Id: 9})
	return ret
}

func instances(t *testing.T, d *daemon, gpu int) []model.InstanceState {
	t.Helper()
	state, err := d.control().State()
	if err != nil {
		t.Fatal(err)
	}
	return state.GPUs[gpu].Instances
}

// A process that dies in a call leaves what the call has done, and no more.
func TestKilledWhileCreating(t *testing.T) {
	d := start(t, "p5.48xlarge")
	for n, after := range []bool{false, true} {
		arguments := []string{"latency", "nvmlDeviceCreateGpuInstance", "1h", fmt.Sprintf("--after=%t", after)}
		if out, err := d.sim(arguments...); err != nil {
			t.Fatalf("%v: %v\n%s", arguments, err, out)
		}
		client := roleCommand(d, "partition")
		if err := client.Start(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the call is under way", func() error {
			state, err := d.control().State()
			if err == nil && (len(state.SlowCalls) != 1 || state.SlowCalls[0].After != after) {
				err = fmt.Errorf("the slow calls are %+v", state.SlowCalls)
			}
			return err
		})
		if err := client.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := client.Wait(); err == nil {
			t.Error("a client that was killed ended well")
		}
		eventually(t, "the call ends", func() error {
			state, err := d.control().State()
			if err == nil && len(state.SlowCalls) > 0 {
				err = errors.New("it is under way still")
			}
			return err
		})
		if got := instances(t, d, 0); len(got) != n {
			t.Errorf("there are %+v, want %d instances", got, n)
		}
		if out, err := d.sim("clear"); err != nil {
			t.Fatalf("clear: %v\n%s", err, out)
		}
	}
	// The next process finds the instance and its place taken.
	d.use()
	lib := library()
	mustInit(t, lib)
	gi, ret := gpu(t, lib, 0).GetGpuInstanceById(instances(t, d, 0)[0].ID)
	returns(t, "GetGpuInstanceById", nvml.SUCCESS, ret)
	returns(t, "Destroy", nvml.SUCCESS, gi.Destroy())
}

// What guards an instance is there when the call that creates it returns, and
// gone when the one that destroys it does.
func TestCapabilityDevicesFollowTheInstances(t *testing.T) {
	d := start(t, "p5e.48xlarge").use() // where minors are not indices
	lib := library()
	mustInit(t, lib)
	device := gpu(t, lib, 2)
	_, ret := device.SetMigMode(nvml.DEVICE_MIG_ENABLE)
	returns(t, "SetMigMode", nvml.SUCCESS, ret)
	gi, ret := device.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 14}, &nvml.GpuInstancePlacement{Start: 2, Size: 2})
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

// A tree that cannot follow the machine any more ends the daemon with a reason.
func TestTreeThatCannotFollow(t *testing.T) {
	t.Parallel()
	d := start(t, "mig-static")
	dir := filepath.Join(d.root, "proc/driver/nvidia/capabilities/gpu4/mig")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, _ = d.sim("mig", "create", "4", "1g.5gb") // the daemon may end before it answers
	if err := d.wait(); err == nil || !strings.Contains(d.log.String(), "not a directory") {
		t.Errorf("the daemon ended with %v:\n%s", err, d.log)
	}
}

func TestNvidiaSMIListsMIGDevices(t *testing.T) {
	t.Parallel()
	d := start(t, "mig-static")
	state, err := d.control().State()
	if err != nil {
		t.Fatal(err)
	}
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
	run("", "latency", "--profile", "realistic")
	run("nvmlDeviceCreateGpuInstance takes 200ms", "status")
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
	gi := instances(t, d, 0)[1]
	const script = `
set -e
mount -t tmpfs none /proc/driver
cp -r "$1/proc/driver/nvidia-caps" /proc/driver/
exec "$2"
`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", d.root, os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=cdi "+d.root+" "+gi.ComputeInstances[0].UUID, "NVML_SIM_SOCKET="+d.socket())
	log := &lockedBuffer{} // nvcdi tells of all that a simulated driver lacks
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

// The instances and what guards them are no client's: they outlive every one.
func TestInstancesOutliveTheirClient(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	if out, err := output(roleCommand(d, "partition")); err != nil {
		t.Fatalf("another process failed: %v\n%s", err, out)
	}
	eventually(t, "its session ends", func() error {
		state, err := d.control().State()
		if err == nil && state.Sessions != 0 {
			err = fmt.Errorf("%d sessions are open", state.Sessions)
		}
		return err
	})
	all := instances(t, d, 0)
	if len(all) != 1 {
		t.Fatalf("there are %+v, want one instance", all)
	}
	capability(t, d, filepath.Join(d.root, fmt.Sprintf("proc/driver/nvidia/capabilities/gpu0/mig/gi%d/access", all[0].ID)), all[0].Capability)
}

// An XID of an instance reaches those who wait for its GPU's.
func TestXIDOfAnInstance(t *testing.T) {
	d := start(t, "mig-static").use()
	lib := library()
	mustInit(t, lib)
	set, ret := lib.EventSetCreate()
	returns(t, "EventSetCreate", nvml.SUCCESS, ret)
	returns(t, "RegisterEvents", nvml.SUCCESS, gpu(t, lib, 3).RegisterEvents(nvml.EventTypeXidCriticalError, set))
	gi := instances(t, d, 3)[0]
	if out, err := d.sim("xid", "3", "31", "--gi", fmt.Sprint(gi.ID), "--ci", "1"); err != nil {
		t.Fatalf("xid: %v\n%s", err, out)
	}
	event, ret := set.Wait(uint32(patience / time.Millisecond))
	returns(t, "Wait", nvml.SUCCESS, ret)
	if int(event.GpuInstanceId) != gi.ID || event.ComputeInstanceId != 1 || event.EventData != 31 {
		t.Errorf("the event is %+v", event)
	}
	returns(t, "Free", nvml.SUCCESS, set.Free())
}
