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

func TestComputePolicy(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	state := d.state()
	for _, test := range []struct{ id, slice, want string }{
		{"1", "3", "Long"},
		{state.GPUs[1].UUID, "short", "Short"},
		{state.GPUs[1].PCIBusID, "MEDIUM", "Medium"},
		{state.GPUs[1].UUID, "default", "Default"},
	} {
		if out, status := d.smi("compute-policy", "-i", test.id, "--set-timeslice", test.slice); status != 0 || d.state().GPUs[1].Timeslice != test.want {
			t.Errorf("set %s for %s: status %d, the GPU has %s\n%s", test.slice, test.id, status, d.state().GPUs[1].Timeslice, out)
		}
	}
	if out, status := d.smi("compute-policy", "--set-timeslice=2"); status != 0 || d.state().GPUs[0].Timeslice != "Medium" || d.state().GPUs[7].Timeslice != "Medium" {
		t.Errorf("set the time slice of all GPUs: status %d\n%s", status, out)
	}
	if out, status := d.smi("compute-policy", "-i", "0,2", "--list"); status != 0 || out != "GPU 0:\n    Timeslice: Medium\nGPU 2:\n    Timeslice: Medium" {
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
	if exitStatus(t, err) != 4 || !strings.Contains(out, "Insufficient Permissions") || d.state().GPUs[0].Timeslice != "Default" {
		t.Errorf("%v, the GPU has %s\n%s", err, d.state().GPUs[0].Timeslice, out)
	}
}
