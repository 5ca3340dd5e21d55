// Package abi_test tests the simulator as its users have it: the C library that
// make builds, loaded into this and other processes, with the daemon behind it.
package abi_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/driverroot"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// patience bounds every wait for something that happens at once.
const patience = 30 * time.Second

// binaries is the directory that make built into.
var binaries string

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	if binaries, err = os.MkdirTemp("", "nvml-sim-bin-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(binaries)
	if err := build(); err != nil {
		return 1, err
	}
	// No device node of this machine may restrict what the library shows, and
	// no simulator that runs on it may be found by accident.
	if err := os.Setenv("NVML_SIM_DEV", binaries); err != nil {
		return 1, err
	}
	if err := os.Setenv("NVML_SIM_SOCKET", filepath.Join(binaries, "no-listener")); err != nil {
		return 1, err
	}
	// go-nvml reaches the library through the process's global symbols, which
	// must outlive the last shutdown of a test.
	if err := dl.New(libraryPath(), dl.RTLD_LAZY|dl.RTLD_GLOBAL).Open(); err != nil {
		return 1, fmt.Errorf("load the library: %w", err)
	}
	return m.Run(), nil
}

// build also makes the daemon with the race detector, where the tests have it: it
// starts slowly, and commands have nothing to race with.
func build() error {
	commands := [][]string{
		{"make", "-C", "../../..", "-f", "test/nvmlsim/nvmlsim.mk", "NVMLSIM_BIN=" + binaries, "nvml-sim"},
		{"go", "build", "-C", "../../cluster/workload", "-o", filepath.Join(binaries, "workload"), "."},
	}
	if raceEnabled {
		commands = append(commands, []string{"go", "build", "-race", "-o", filepath.Join(binaries, daemonName), "../cmd/nvml-sim"})
	}
	for _, command := range commands {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("build the simulator: %w\n%s", err, out)
		}
	}
	return nil
}

func libraryPath() string { return filepath.Join(binaries, "libnvidia-ml.so.1") }

func library() nvml.Interface { return nvml.New(nvml.WithLibraryPath(libraryPath())) }

// daemon is a running nvml-sim.
type daemon struct {
	t      testing.TB
	cmd    *exec.Cmd
	root   string
	log    *lockedBuffer
	exited chan error
}

// start runs a daemon that simulates the machine and waits until it answers.
// The daemon ends with the test, which fails if it does not end well.
func start(t testing.TB, node string) *daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "nvml-sim-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return startIn(t, node, filepath.Join(dir, "root"))
}

func startIn(t testing.TB, node, root string, arguments ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, root: root, log: &lockedBuffer{}, exited: make(chan error, 1)}
	d.cmd = exec.Command(filepath.Join(binaries, daemonName),
		append([]string{"serve", "--node", node, "--root", root}, arguments...)...)
	d.cmd.Stderr = d.log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		t.Fatalf("start the daemon: %v", err)
	}
	go func() { d.exited <- d.cmd.Wait() }()
	t.Cleanup(d.stop)
	eventually(t, "the daemon answers", func() error {
		select {
		case err := <-d.exited:
			d.exited <- err
			t.Fatalf("the daemon ended with %v:\n%s", err, d.log)
		default:
		}
		_, err := d.control().State()
		return err
	})
	return d
}

func (d *daemon) socket() string { return filepath.Join(d.root, driverroot.HostSocket) }

func (d *daemon) control() wire.Client { return wire.Client{Socket: d.socket()} }

// use makes clients that this process initialises from now on reach the daemon.
func (d *daemon) use() *daemon {
	d.t.Setenv("NVML_SIM_SOCKET", d.socket())
	return d
}

// stop ends the daemon as an operator does.
func (d *daemon) stop() {
	if d.cmd.ProcessState != nil {
		return
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		d.t.Errorf("stop the daemon: %v", err)
	}
	if err := d.wait(); err != nil {
		d.t.Errorf("the daemon ended with %v:\n%s", err, d.log)
	}
}

// kill ends the daemon as the kernel does when memory is short.
func (d *daemon) kill() {
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Fatalf("kill the daemon: %v", err)
	}
	if err := d.wait(); err == nil {
		d.t.Error("a daemon that was killed ended well")
	}
}

func (d *daemon) wait() error {
	select {
	case err := <-d.exited:
		d.exited <- err
		return err
	case <-time.After(patience):
		return errors.Join(errors.New("it does not end"), d.cmd.Process.Kill())
	}
}

// sim runs a command of the command line and returns what it wrote.
func (d *daemon) sim(arguments ...string) (string, error) {
	return sim(append([]string{"--socket", d.socket()}, arguments...)...)
}

func sim(arguments ...string) (string, error) {
	return output(exec.Command(filepath.Join(binaries, "nvml-sim"), arguments...))
}

func output(cmd *exec.Cmd) (string, error) {
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

func eventually(t testing.TB, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("it does not come to pass that %s: %v", what, err)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// initialised is a client until the test ends.
func initialised(t testing.TB) nvml.Interface {
	t.Helper()
	lib := library()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		t.Fatalf("initialise the library: %v", ret)
	}
	t.Cleanup(func() { returns(t, "Shutdown", nvml.SUCCESS, lib.Shutdown()) })
	return lib
}

func returns(t testing.TB, what string, want, got nvml.Return) {
	t.Helper()
	if got != want {
		t.Errorf("%s returned %d (%v), want %d", what, got, got, want)
	}
}

// state is the machine's now.
func (d *daemon) state() model.State {
	d.t.Helper()
	state, err := d.control().State()
	if err != nil {
		d.t.Fatal(err)
	}
	return state
}

// smi runs nvidia-smi on the machine and returns its output and exit status.
func (d *daemon) smi(arguments ...string) (string, int) {
	d.t.Helper()
	cmd := exec.Command(filepath.Join(d.root, "usr/bin/nvidia-smi"), arguments...)
	cmd.Env = append(os.Environ(), "NVML_SIM_SOCKET=")
	out, err := output(cmd)
	return out, exitStatus(d.t, err)
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

var _ io.Writer = (*lockedBuffer)(nil)

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
