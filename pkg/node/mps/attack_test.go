package mps

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A container with a share may run as root. Its daemon is root of the node, and serves other
// tenants.
func TestRootOfAContainerCannotChangeWhatTheDaemonUses(t *testing.T) {
	root := shortDir(t)
	d := NewDirectory(root)
	pipe := d.root.place("gpu-0-mps").Pipe()
	for _, dir := range []string{pipe, d.root.shm()} {
		must(t, errors.Join(os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777|os.ModeSticky)))
	}
	listener, err := net.Listen("unix", filepath.Join(pipe, "control"))
	must(t, err)
	defer func() { _ = listener.Close() }()
	for name, make := range map[string]func(string) error{
		"control_lock": func(path string) error { return os.WriteFile(path, []byte("locked"), 0o666) },
		"log":          func(path string) error { return syscall.Mkfifo(path, 0o666) },
	} {
		must(t, make(filepath.Join(pipe, name)))
	}
	reader, err := os.OpenFile(filepath.Join(pipe, "log"), os.O_RDONLY|syscall.O_NONBLOCK, 0) // as the daemon does
	must(t, err)
	defer func() { _ = reader.Close() }()

	for line := range strings.Lines(inContainer(t, root)) {
		t.Error(strings.TrimSpace(line))
	}
	if info, err := os.Lstat(filepath.Join(pipe, "control_lock")); err != nil || !info.Mode().IsRegular() || info.Size() != int64(len("locked")) {
		t.Errorf("the lock is another: %v, error %v", info, err)
	}
}

// inContainer runs attack as root in a mount namespace of its own, and returns the output.
func inContainer(t *testing.T, root string) string {
	t.Helper()
	own, err := os.Executable()
	must(t, err)
	command := exec.Command(own, root)
	command.Env = append(os.Environ(), actVariable+"="+actAttack)
	command.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	output, err := command.CombinedOutput()
	if errors.Is(err, syscall.EPERM) {
		t.Skip("mount namespaces need root")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return string(output)
}

// attack prints what a container with a share can do but must not, and what it must do but cannot.
func attack(root string) int {
	container, err := os.MkdirTemp(root, "container-")
	if err == nil {
		err = mountEdits(NewDirectory(root), container)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	pipe, shm := filepath.Join(container, clientPipe), filepath.Join(container, clientShm)
	in := func(name string) string { return filepath.Join(pipe, name) }
	open := func(path string, flag int) error {
		file, err := os.OpenFile(path, flag, 0o666)
		if err == nil {
			_ = file.Close() // nothing was written
		}
		return err
	}
	for what, try := range map[string]func() error{
		"link to a file of the node": func() error { return os.Symlink("/etc/passwd", in("nvidia-cuda-mps-control.pid")) },
		"replace the lock":           func() error { return os.Rename(in("log"), in("control_lock")) },
		"empty the lock":             func() error { return open(in("control_lock"), os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK) },
		"remove the socket":          func() error { return os.Remove(in("control")) },
		"make a socket": func() error {
			listener, err := net.Listen("unix", in("nvidia-cuda-mps-server"))
			if err == nil {
				err = listener.Close()
			}
			return err
		},
		"make a directory": func() error { return os.Mkdir(in("control_privileged"), 0o777) },
		"close the socket": func() error { return os.Chmod(in("control"), 0) },
	} {
		if err := try(); err == nil {
			fmt.Println("it can", what)
		}
	}
	connection, err := net.Dial("unix", in("control"))
	if err == nil {
		err = connection.Close()
	}
	if err := errors.Join(err, open(in("log"), os.O_WRONLY|syscall.O_NONBLOCK)); err != nil {
		fmt.Println("it cannot be a client:", err)
	}
	// The same directory, as a server has it.
	if err := errors.Join(os.WriteFile(filepath.Join(root, "victim"), nil, 0o600), os.Symlink(filepath.Join(root, "victim"), filepath.Join(shm, "cuda.shm.0.1")), IgnoreLinks(shm)); err != nil {
		fmt.Println("it has no shared memory:", err)
	}
	if open(filepath.Join(shm, "cuda.shm.0.1"), os.O_RDWR) == nil {
		fmt.Println("it can lead a server to a file of the node")
	}
	return 0
}

// mountEdits applies a share's edits as a container runtime does.
func mountEdits(d *Directory, container string) error {
	flags := map[string]uintptr{"ro": unix.MS_RDONLY, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC}
	for _, mount := range d.Edits("gpu-0-mps", Limits{}).Mounts {
		target := filepath.Join(container, mount.ContainerPath)
		if err := errors.Join(os.MkdirAll(target, 0o755), unix.Mount(mount.HostPath, target, "", unix.MS_BIND, "")); err != nil {
			return err
		}
		with := uintptr(unix.MS_BIND | unix.MS_REMOUNT)
		for _, option := range slices.Sorted(slices.Values(mount.Options)) {
			with |= flags[option]
		}
		if err := unix.Mount("", target, "", with, ""); err != nil {
			return err
		}
	}
	return nil
}
