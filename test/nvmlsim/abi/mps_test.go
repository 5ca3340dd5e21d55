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

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/test/nvmlsim/process"
)

// mpsDaemon is an MPS control daemon of a simulated machine.
type mpsDaemon struct {
	of   *daemon
	dir  string
	args []string
	env  []string
	cmd  *exec.Cmd
}

// mps makes a daemon that is not started, with the arguments and environment.
func (d *daemon) mps(environment []string, arguments ...string) *mpsDaemon {
	d.t.Helper()
	dir, err := os.MkdirTemp("", "nvml-sim-mps-")
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { os.RemoveAll(dir) })
	// Clients of every user reach the pipe directory.
	if err := os.Chmod(dir, 0o755); err != nil {
		d.t.Fatal(err)
	}
	return &mpsDaemon{of: d, dir: dir, args: arguments, env: environment}
}

func (m *mpsDaemon) pipe() string { return filepath.Join(m.dir, "pipe") }

func (m *mpsDaemon) command(arguments ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(m.of.root, "usr/bin/nvidia-cuda-mps-control"), arguments...)
	cmd.Env = slices.Concat(os.Environ(), []string{"NVML_SIM_SOCKET=",
		"CUDA_MPS_PIPE_DIRECTORY=" + m.pipe(), "CUDA_MPS_LOG_DIRECTORY=" + filepath.Join(m.dir, "log")}, m.env)
	return cmd
}

// start runs the daemon until the test ends.
func (m *mpsDaemon) start() *mpsDaemon {
	t := m.of.t
	t.Helper()
	m.cmd = m.command(append([]string{"-f"}, m.args...)...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	complaints := &lockedBuffer{}
	m.cmd.Stderr = complaints
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := m.cmd
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if said := complaints.String(); said != "" {
			t.Errorf("the MPS daemon complains:\n%s", said)
		}
	})
	eventually(t, "the MPS daemon listens", func() error {
		_, err := output(m.command())
		return err
	})
	return m
}

// ask gives the daemon a command and returns what the front end says.
func (m *mpsDaemon) ask(command string) string {
	m.of.t.Helper()
	out, err := m.tryAsk(command)
	if err != nil {
		m.of.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return out
}

func (m *mpsDaemon) tryAsk(command string) (string, error) {
	cmd := m.command()
	cmd.Stdin = strings.NewReader(command)
	return output(cmd)
}

// workload is a client of MPS.
type workload struct {
	t      testing.TB
	cmd    *exec.Cmd
	out    *lockedBuffer
	exited chan error
}

func (m *mpsDaemon) client(uid uint32, environment ...string) *workload {
	t := m.of.t
	t.Helper()
	w := &workload{t: t, out: &lockedBuffer{}, exited: make(chan error, 1)}
	if err := os.Chmod(binaries, 0o755); err != nil {
		t.Fatal(err)
	}
	w.cmd = exec.Command(filepath.Join(binaries, "workload"), "mps")
	w.cmd.Env = append(environment, "CUDA_MPS_PIPE_DIRECTORY="+m.pipe())
	w.cmd.Dir = "/"
	w.cmd.Stdout, w.cmd.Stderr = w.out, w.out
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { w.exited <- w.cmd.Wait() }()
	t.Cleanup(func() { _ = w.cmd.Process.Kill() })
	return w
}

// says waits until the client has said it.
func (w *workload) says(what string) *workload {
	w.t.Helper()
	eventually(w.t, "the client says "+what, func() error {
		if out := w.out.String(); !strings.Contains(out, what) {
			return fmt.Errorf("it says:\n%s", out)
		}
		return nil
	})
	return w
}

// ends waits for the client's end and returns its exit status.
func (w *workload) ends() int {
	w.t.Helper()
	return exitStatus(w.t, <-w.exited)
}

func (w *workload) stop() {
	w.t.Helper()
	if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	if status := w.ends(); status != 0 {
		w.t.Errorf("a client that got SIGTERM ended with %d\n%s", status, w.out)
	}
}

// A client has the least of what its server and it itself allow.
func TestMPSLimits(t *testing.T) {
	t.Parallel()
	d := start(t, "g5.12xlarge")
	first, second := d.state().GPUs[1].UUID, d.state().GPUs[3].UUID
	const total = 23028 << 20
	for name, test := range map[string]struct {
		daemon   []string
		commands string
		client   []string
		want     []string
	}{
		"none": {want: []string{"threads 100%", "device " + first + " memory " + fmt.Sprint(total), "device " + second}},
		"the daemon's": {
			commands: "set_default_active_thread_percentage 25\nset_default_device_pinned_mem_limit 0 512M\nset_default_device_pinned_mem_limit " + second + " 1G",
			want: []string{"threads 25%", first + " memory 536870912\nmps allocate 268435456 granted\nmps allocate 268435457 refused CUDA_ERROR_OUT_OF_MEMORY",
				second + " memory 1073741824"},
		},
		"the daemon's environment's": {
			daemon: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=40", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=1=512MB"},
			want:   []string{"threads 40%", second + " memory 536870912"},
		},
		"the client's": {
			client: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=12.5", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G,1=2G"},
			want:   []string{"threads 12.5%", first + " memory 1073741824", second + " memory 2147483648"},
		},
		"the client's, which are less": {
			commands: "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 2G",
			client:   []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G"},
			want:     []string{"threads 20%", first + " memory 1073741824"},
		},
		"the client's, which are more": {
			commands: "set_default_active_thread_percentage 50\nset_default_device_pinned_mem_limit 0 2G",
			client:   []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=90", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G"},
			want:     []string{"threads 50%", first + " memory 2147483648"},
		},
		"the client's, of the devices that it sees": {
			client: []string{"CUDA_VISIBLE_DEVICES=" + second, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1G"},
			want:   []string{second + " memory 1073741824"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := d.mps(append(test.daemon, "CUDA_VISIBLE_DEVICES="+first+","+second)).start()
			m.ask(test.commands)
			w := m.client(0, test.client...).says("mps connected")
			for _, want := range test.want {
				w.says(want)
			}
			w.stop()
		})
	}
}

func TestMPSOnAMIGDevice(t *testing.T) {
	t.Parallel()
	d := start(t, "p5.48xlarge")
	if err := d.control().SetMIGMode(2, true); err != nil {
		t.Fatal(err)
	}
	partition, err := d.control().CreateInstance(2, "1g.10gb", nil)
	if err != nil {
		t.Fatal(err)
	}
	uuid := partition.ComputeInstances[0].UUID
	m := d.mps([]string{"CUDA_VISIBLE_DEVICES=" + uuid}).start()
	m.ask("set_default_device_pinned_mem_limit 0 4096M")
	w := m.client(0).says("mps device " + uuid + " memory 4294967296").says("mps connected")
	if err := d.control().DestroyInstance(2, partition.ID); err == nil {
		t.Error("a MIG instance was destroyed under an MPS server")
	}
	w.stop()
	m.ask("quit")
	if err := d.control().DestroyInstance(2, partition.ID); err != nil {
		t.Error(err)
	}
	m.start()
	gone := m.client(0)
	gone.says("CUDA_ERROR_NO_DEVICE")
	if status := gone.ends(); status != 1 {
		t.Errorf("a client without a device ended with %d", status)
	}
}

func TestMPSDaemonIsAlone(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	m := d.mps(nil)
	if out, err := m.tryAsk("get_server_list"); exitStatus(t, err) != 1 || out != "Cannot find MPS control daemon process" {
		t.Errorf("without a daemon: %v\n%s", err, out)
	}
	if out, err := output(m.command("-d")); err != nil || out != "" {
		t.Fatalf("start in the background: %v\n%s", err, out)
	}
	if out := m.ask("get_default_active_thread_percentage"); out != "100.0" {
		t.Errorf("the daemon in the background says %q", out)
	}
	for _, how := range []string{"-d", "-f"} {
		if out, err := output(m.command(how)); exitStatus(t, err) != 1 || out != "An instance of this daemon is already running" {
			t.Errorf("a second daemon: %v\n%s", err, out)
		}
	}
	for _, name := range []string{"pipe/control", "pipe/control_lock", "pipe/log", "pipe/nvidia-cuda-mps-control.pid", "log/control.log", "log/server.log"} {
		if _, err := os.Lstat(filepath.Join(m.dir, name)); err != nil {
			t.Error(err)
		}
	}
	m.ask("quit")
	if out, err := m.tryAsk("get_server_list"); exitStatus(t, err) != 1 {
		t.Errorf("after quit: %v\n%s", err, out)
	}
	long := d.mps(nil)
	long.dir = filepath.Join(long.dir, strings.Repeat("l", 100))
	if err := os.Mkdir(long.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := output(long.command("-d")); exitStatus(t, err) != 1 || out != "Cannot find MPS control daemon process" {
		t.Errorf("a path that no socket can have: %v\n%s", err, out)
	}
}

func TestMPSDaemonIsKilled(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	m := d.mps(nil).start()
	w := m.client(0).says("mps connected")
	if err := m.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if status := w.says("mps lost").ends(); status != 1 {
		t.Errorf("a client that lost its daemon ended with %d", status)
	}
	eventually(t, "the server goes with its daemon", func() error {
		state, err := d.control().State()
		if err == nil && len(state.GPUs[0].Processes) > 0 {
			err = fmt.Errorf("on the GPU is %+v", state.GPUs[0].Processes)
		}
		return err
	})
	m.start()
	m.client(0).says("mps connected").stop()
}

func TestMPSDaemonIsTerminated(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	m := d.mps(nil).start()
	w := m.client(0).says("mps connected")
	if out, err := d.sim("status"); err != nil || !strings.Contains(out, "(nvidia-cuda-mps-server) computes on "+d.state().GPUs[0].UUID) {
		t.Errorf("status: %v\n%s", err, out)
	}
	pid := m.server()
	if err := m.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := m.cmd.Wait(); err != nil {
		t.Error(err)
	}
	w.says("mps lost").ends()
	for _, name := range []string{"control", "nvidia-cuda-mps-control.pid"} {
		if _, err := os.Lstat(filepath.Join(m.pipe(), name)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", name, err)
		}
	}
	noSharedMemory(t, pid)
}

// noSharedMemory is what a server leaves.
func noSharedMemory(t *testing.T, server int) {
	t.Helper()
	if left, err := filepath.Glob(fmt.Sprintf("/dev/shm/cuda.shm.0.%x.*", server)); err != nil || len(left) > 0 {
		t.Errorf("shared memory is left: %v (%v)", left, err)
	}
}

func (m *mpsDaemon) server() int {
	m.of.t.Helper()
	var pid int
	if _, err := fmt.Sscan(m.ask("get_server_list"), &pid); err != nil {
		m.of.t.Fatal(err)
	}
	return pid
}

func TestMPSServerIsKilled(t *testing.T) {
	t.Parallel()
	m := start(t, "g6.xlarge").mps(nil).start()
	w := m.client(0).says("mps connected")
	pid := m.server()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.says("mps lost").ends()
	next := m.client(0).says("mps connected")
	if server := m.ask("get_server_list"); server == fmt.Sprint(pid) || server == "" {
		t.Errorf("after server %d was killed there is server %q", pid, server)
	}
	noSharedMemory(t, pid)
	next.stop()
}

func TestMPSGPUIsLost(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	m := d.mps(nil).start()
	w := m.client(0).says("mps connected")
	if err := d.control().Lose(0); err != nil {
		t.Fatal(err)
	}
	w.says("mps lost").ends()
	m.client(0).says("CUDA_ERROR_DEVICE_UNAVAILABLE").ends()
}

func TestMPSUsersTakeTurns(t *testing.T) {
	t.Parallel()
	d := start(t, "g6.xlarge")
	d.asUser(exec.Command("true"), otherUser)
	m := d.mps(nil).start()
	root := m.client(0).says("mps connected")
	other := m.client(otherUser)
	eventually(t, "the other user's client waits", func() error {
		raw, err := os.ReadFile(filepath.Join(m.dir, "log", "control.log"))
		if err == nil && !strings.Contains(string(raw), fmt.Sprintf("NEW CLIENT %d from user %d", other.cmd.Process.Pid, otherUser)) {
			err = fmt.Errorf("the log is\n%s", raw)
		}
		return err
	})
	if out := other.out.String(); out != "" {
		t.Fatalf("another user's client was taken:\n%s", out)
	}
	first := m.ask("get_server_list")
	root.stop()
	other.says("mps connected")
	if second := m.ask("get_server_list"); second == first {
		t.Errorf("server %s serves two users", first)
	}
	other.stop()

	shared := d.mps(nil, "-multiuser-server").start()
	root, other = shared.client(0).says("mps connected"), shared.client(otherUser).says("mps connected")
	root.stop()
	other.stop()
	refused := shared.command()
	refused.Stdin = strings.NewReader("quit")
	if out, err := output(d.asUser(refused, otherUser)); err != nil || out != "Permission denied" {
		t.Errorf("a command of another user: %v\n%s", err, out)
	}
}

func TestMPSExclusiveProcess(t *testing.T) {
	d := start(t, "g6.xlarge").use()
	lib := initialised(t)
	returns(t, "SetComputeMode", nvml.SUCCESS, device(t, lib, 0).SetComputeMode(nvml.COMPUTEMODE_EXCLUSIVE_PROCESS))
	m := d.mps(nil).start()
	first, second := m.client(0).says("mps connected"), m.client(0).says("mps connected")
	if _, err := process.Open(d.socket(), process.Request{Name: "plain"}); err == nil || !strings.Contains(err.Error(), "CUDA_ERROR_DEVICE_UNAVAILABLE") {
		t.Errorf("a process beside the MPS server: %v", err)
	}
	first.stop()
	second.stop()
	m.ask("quit")
	plain, err := process.Open(d.socket(), process.Request{Name: "plain"})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	m.start()
	m.client(0).says("CUDA_ERROR_DEVICE_UNAVAILABLE").ends()
}
