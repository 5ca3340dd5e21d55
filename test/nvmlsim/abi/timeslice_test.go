package abi_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// exitStatus is what a shell sees of a command.
func exitStatus(t testing.TB, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err == nil {
		return 0
	}
	if !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

// policy runs nvidia-smi compute-policy and returns its output and exit status.
func (d *daemon) policy(arguments ...string) (string, int) {
	cmd := exec.Command(filepath.Join(d.root, "usr/bin/nvidia-smi"), append([]string{"compute-policy"}, arguments...)...)
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=")
	out, err := output(cmd)
	d.t.Helper()
	return out, exitStatus(d.t, err)
}

func (d *daemon) timeslice(gpu int) string {
	d.t.Helper()
	state, err := d.control().State()
	if err != nil {
		d.t.Fatal(err)
	}
	return state.GPUs[gpu].Timeslice
}

func TestComputePolicy(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	state, err := d.control().State()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ id, slice, want string }{
		{"1", "3", "Long"},
		{state.GPUs[1].UUID, "short", "Short"},
		{state.GPUs[1].PCIBusID, "MEDIUM", "Medium"},
		{state.GPUs[1].UUID, "default", "Default"},
	} {
		if out, status := d.policy("-i", test.id, "--set-timeslice", test.slice); status != 0 || d.timeslice(1) != test.want {
			t.Errorf("set %s for %s: status %d, the GPU has %s\n%s", test.slice, test.id, status, d.timeslice(1), out)
		}
	}
	if out, status := d.policy("--set-timeslice=2"); status != 0 || d.timeslice(0) != "Medium" || d.timeslice(7) != "Medium" {
		t.Errorf("set the time slice of all GPUs: status %d\n%s", status, out)
	}
	if out, status := d.policy("-i", "0,2", "--list"); status != 0 || out != "GPU 0:\n    Timeslice: Medium\nGPU 2:\n    Timeslice: Medium" {
		t.Errorf("--list: status %d\n%s", status, out)
	}
	if out, err := d.sim("status"); err != nil || !strings.Contains(out, "Medium") {
		t.Errorf("status: %v\n%s", err, out)
	}
}

func TestComputePolicyIsRefused(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	if err := d.control().SetMIGMode(3, true); err != nil {
		t.Fatal(err)
	}
	const unsupported = "Failed to set timeslice policy with value Short for GPU 3 : Not Supported\n" +
		"Failed to set timeslice for requested devices : Not Supported"
	if out, status := d.policy("-i", "3", "--set-timeslice", "1"); status != 3 || out != unsupported {
		t.Errorf("with MIG enabled: status %d\n%s", status, out)
	}
	if out, status := d.policy("-i", "3", "-l"); status != 0 || !strings.Contains(out, "N/A") {
		t.Errorf("list with MIG enabled: status %d\n%s", status, out)
	}
	for _, arguments := range [][]string{{}, {"--set-timeslice", "4"}, {"--set-timeslice", "soon"}, {"--set-timeslice"}, {"-l", "--set-timeslice", "1"}, {"--speed"}} {
		if out, status := d.policy(arguments...); status != 2 || !strings.Contains(out, "Usage: nvidia-smi compute-policy") {
			t.Errorf("%q: status %d\n%s", arguments, status, out)
		}
	}
	for _, id := range []string{"8", "GPU-0", "0000:ff:00.0"} {
		if out, status := d.policy("-i", id, "--set-timeslice", "1"); status != 6 || !strings.Contains(out, id) {
			t.Errorf("for %s: status %d\n%s", id, status, out)
		}
	}
	if out, err := d.sim("fail", "nvmlSimDeviceSetTimeslice", "UNKNOWN", "--gpu", "1", "--times", "1"); err != nil {
		t.Fatalf("inject a failure: %v\n%s", err, out)
	}
	if out, status := d.policy("-i", "0,1", "--set-timeslice", "1"); status != 255 || d.timeslice(0) != "Short" || d.timeslice(1) != "Default" {
		t.Errorf("with a failure injected: status %d, the GPUs have %s and %s\n%s", status, d.timeslice(0), d.timeslice(1), out)
	}
}

func TestComputePolicyOfAnOldBoard(t *testing.T) {
	t.Parallel()
	d := start(t, "pascal")
	if out, status := d.policy("-i", "0", "--set-timeslice", "0"); status != 3 || !strings.Contains(out, "GPU 0 : Not Supported") {
		t.Errorf("status %d\n%s", status, out)
	}
}

// nobody is a user who is not root.
const nobody = 65534

// asUser makes the command another user's, who can reach the driver root.
func (d *daemon) asUser(cmd *exec.Cmd, uid uint32) *exec.Cmd {
	d.t.Helper()
	if err := os.Chmod(filepath.Dir(d.root), 0o755); err != nil {
		d.t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

func TestComputePolicyIsRootsAlone(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	smi := filepath.Join(d.root, "usr/bin/nvidia-smi")
	cmd := d.asUser(exec.Command(smi, "compute-policy", "--set-timeslice", "1"), nobody)
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=")
	out, err := output(cmd)
	if exitStatus(t, err) != 4 || !strings.Contains(out, "Insufficient Permissions") || d.timeslice(0) != "Default" {
		t.Errorf("%v, the GPU has %s\n%s", err, d.timeslice(0), out)
	}
}
