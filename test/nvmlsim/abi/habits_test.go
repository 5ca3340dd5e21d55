package abi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// withHabits is the description of a ready-made machine with habits.
func withHabits(t *testing.T, machine, habits string) (file string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("../nodes", machine+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(file, fmt.Appendf(content, "habits: %s\n", habits), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// devices lists the character devices below a directory with their numbers.
func devices(t *testing.T, dir string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.Type()&os.ModeCharDevice == 0 {
			return err
		}
		var status unix.Stat_t
		if err := unix.Stat(path, &status); err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		found = append(found, fmt.Sprintf("%s %d:%d %o", name, unix.Major(status.Rdev), unix.Minor(status.Rdev), status.Mode&0o777))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

func TestDeviceNodesThatClientsMake(t *testing.T) {
	t.Parallel()
	d := start(t, withHabits(t, "mig-static", "{deviceNodes: onOpen}"))
	if err := os.Chmod(filepath.Dir(d.root), 0o755); err != nil { // for other users
		t.Fatal(err)
	}
	client := func(dev string, uid uint32, command *exec.Cmd) error {
		command.Env = append(command.Environ(), "NVML_SIM_SOCKET=", "NVML_SIM_DEV="+dev)
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		if out, err := output(command); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	list := func(dev string, uid uint32) error {
		return client(dev, uid, exec.Command(filepath.Join(d.root, "usr/bin/nvidia-smi"), "-L"))
	}
	wants := func(what, dev string, want ...string) {
		t.Helper()
		if got := devices(t, dev); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", what, got, want)
		}
	}
	host := filepath.Join(d.root, "dev")
	wants("the machine before anybody opens NVML", host)

	own := t.TempDir()
	if err := list(own, 65534); err == nil || !strings.Contains(err.Error(), "couldn't communicate") {
		t.Errorf("another user without device nodes: %v", err)
	}
	if err := client(own, 0, roleCommand(d, "lookup")); err != nil {
		t.Fatal(err)
	}
	wants("the /dev of a client of GPU 0", own, "nvidia0 195:0 666", "nvidiactl 195:255 666")
	wants("the machine after a client with its own /dev", host)

	if err := list(host, 0); err != nil {
		t.Fatal(err)
	}
	if got := devices(t, host); len(got) < 3 || slices.ContainsFunc(got, func(s string) bool { return strings.Contains(s, "uvm") }) {
		t.Errorf("the machine has %q after nvidia-smi on it, want its GPUs and no nvidia-uvm", got)
	}
	if err := list(host, 65534); err != nil {
		t.Errorf("another user with device nodes: %v", err)
	}
}
