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

// otherUser is not root.
const otherUser = 65534

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
	cmd := d.asUser(exec.Command(smi, "compute-policy", "--set-timeslice", "1"), otherUser)
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=")
	out, err := output(cmd)
	if exitStatus(t, err) != 4 || !strings.Contains(out, "Insufficient Permissions") || d.timeslice(0) != "Default" {
		t.Errorf("%v, the GPU has %s\n%s", err, d.timeslice(0), out)
	}
}
