package abi_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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

// The driver arrives after everything else, is upgraded under a client, and goes.
func TestDriverComesAndGoes(t *testing.T) {
	t.Parallel()
	d := start(t, withHabits(t, "g6.xlarge", "{driver: {library: none, module: none}}"))
	library := filepath.Join(d.root, "usr/lib64/libnvidia-ml.so.1")
	driver := func(arguments ...string) {
		t.Helper()
		if out, err := d.sim(append([]string{"driver"}, arguments...)...); err != nil {
			t.Fatalf("driver %q: %v\n%s", arguments, err, out)
		}
	}
	client := func(want string) {
		t.Helper()
		out, err := output(roleCommand(d, "lookup"))
		if (err == nil) != (want == "") || !strings.Contains(out, want) {
			t.Errorf("a client ended with %v and %q, want %q", err, out, want)
		}
	}
	for _, name := range []string{library, filepath.Join(d.root, "usr/bin/nvidia-smi"), filepath.Join(d.root, "proc/driver/nvidia/version")} {
		if _, err := os.Stat(name); !os.IsNotExist(err) {
			t.Errorf("%s is there before the driver: %v", name, err)
		}
	}

	driver("--library", "580.95.05")
	client("Driver Not Loaded")
	driver("--module", "580.95.05")
	client("")
	release := holdNVML(t, d)
	if out, err := d.sim("driver", "--module", "none"); err == nil || !strings.Contains(out, "is in use by 1 processes") {
		t.Errorf("the module was unloaded under a client: %v\n%s", err, out)
	}

	before, err := os.Stat(library)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"580.95.05", "590.44.01"} {
		driver("--library", version)
		after, err := os.Stat(library)
		if err != nil {
			t.Fatal(err)
		}
		// The inode of a closed file is soon another file's.
		if os.SameFile(before, after) && before.ModTime().Equal(after.ModTime()) {
			t.Errorf("version %s was installed into the same file", version)
		}
		before = after
	}
	if _, err := os.Stat(filepath.Join(d.root, "usr/lib64/libnvidia-ml.so.580.95.05")); !os.IsNotExist(err) {
		t.Errorf("the old library is still there: %v", err)
	}
	client("Driver/library version mismatch")
	release()
	driver("--module", "590.44.01")
	client("")
	if version, err := os.ReadFile(filepath.Join(d.root, "sys/module/nvidia/version")); err != nil || string(version) != "590.44.01\n" {
		t.Errorf("the kernel says that the driver is %q (%v)", version, err)
	}

	driver("--module", "none", "--library", "none")
	if _, err := os.Lstat(library); !os.IsNotExist(err) {
		t.Errorf("the library is still there: %v", err)
	}
	if out, err := d.sim("status"); err != nil || !strings.Contains(out, "driver none") {
		t.Errorf("status: %v\n%s", err, out)
	}
}

// holdNVML starts a process that has NVML and GPU 0 open until it is ended.
func holdNVML(t *testing.T, d *daemon) (end func()) {
	t.Helper()
	cmd := roleCommand(d, "wait")
	out := &lockedBuffer{}
	cmd.Stdout = out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended by itself
		_ = cmd.Wait()
		eventually(t, "its session ends", func() error {
			state, err := d.control().State()
			if err == nil && state.Sessions != 0 {
				err = fmt.Errorf("%d sessions are open", state.Sessions)
			}
			return err
		})
	})
	t.Cleanup(end)
	eventually(t, "the client waits", func() error {
		if !strings.Contains(out.String(), "waiting") {
			return errors.New("it has not begun")
		}
		return nil
	})
	return end
}

// A metrics exporter in another process keeps an administrator from resetting a GPU.
func TestExporterHoldsAGPU(t *testing.T) {
	t.Parallel()
	d := start(t, withHabits(t, "p4d.24xlarge", "{clientsHold: true}"))
	release := holdNVML(t, d)
	for _, command := range []string{"mig mode 0 on", "reset 0", "detach 0"} {
		if out, err := d.sim(strings.Fields(command)...); err == nil || !strings.Contains(strings.ToLower(out), "client") {
			t.Errorf("%s under an exporter: %v\n%s", command, err, out)
		}
	}
	release()
	if out, err := d.sim("reset", "0"); err != nil {
		t.Errorf("reset: %v\n%s", err, out)
	}
	if state, err := d.control().State(); err != nil || state.GPUs[0].MIGMode != "Enabled" {
		t.Errorf("the pending MIG mode was not activated: %+v (%v)", state.GPUs[0], err)
	}
}
