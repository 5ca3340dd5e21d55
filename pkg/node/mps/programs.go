package mps

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

const (
	controlProgram = "nvidia-cuda-mps-control"
	// comm is how the kernel calls MPS's processes: it keeps 15 bytes of a name.
	comm = "nvidia-cuda-mps"

	pipeVariable = "CUDA_MPS_PIPE_DIRECTORY="
	// outputWait is how long the output of a process that has ended is waited for:
	// a child of it may keep the pipe open.
	outputWait = time.Second
)

// Tools finds the NVIDIA driver's programs and tells what they need to run.
type Tools interface {
	Find(program string) (string, error)
	Environment() ([]string, error)
	// Devices is the directory with the device nodes that the plugin gives to
	// containers, which is not always this process' /dev.
	Devices() string
}

// Programs are those of an installed driver.
type Programs struct{ tools Tools }

// NewPrograms looks for the programs when they are needed.
func NewPrograms(tools Tools) *Programs { return &Programs{tools: tools} }

// LibraryLinks is the directory in an MPS root for driverroot's links.
func LibraryLinks(path string) string { return filepath.Join(path, linksDir) }

// command is the control program, of the given place.
func (p *Programs) command(place Place, arguments ...string) (*exec.Cmd, error) {
	path, err := p.tools.Find(controlProgram)
	if err != nil {
		return nil, err
	}
	environment, err := p.tools.Environment()
	if err != nil {
		return nil, err
	}
	command := exec.Command(path, arguments...)
	command.Env = append(environment, pipeVariable+place.Pipe(), "CUDA_MPS_LOG_DIRECTORY="+place.Log())
	command.Dir = "/"
	command.WaitDelay = outputWait
	return command, nil
}

// Run implements Runner.
func (p *Programs) Run(daemon Daemon, place Place, singleUser bool) (Process, error) {
	arguments := []string{"-f"}
	if !singleUser {
		// One server for the processes of all users. Without it, those of one user
		// wait until those of another have ended (NVIDIA's MPS documentation,
		// "Architecture"), and pods seldom run as the same user.
		arguments = append(arguments, "-multiuser-server")
	}
	command, err := p.command(place, arguments...)
	if err != nil {
		return nil, err
	}
	child := &child{command: command, devices: p.tools.Devices(), shm: place.shm(), ended: make(chan struct{})}
	command.Env = append(command.Env, "CUDA_VISIBLE_DEVICES="+strings.Join(daemon.Devices, ","))
	command.Stdout, command.Stderr = &child.output, &child.output
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go child.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", command.Path, err)
	}
	return child, nil
}

// child is a control daemon that was started as a child of this process.
type child struct {
	command *exec.Cmd
	// devices becomes the process' /dev, and shm what is in it as shm.
	devices, shm string
	output       driverroot.Output
	ended        chan struct{}
	end          error // of the process, once ended is closed
}

func (c *child) run(started chan<- error) {
	// The kernel takes the end of this thread for the end of the parent (prctl(2),
	// PR_SET_PDEATHSIG), and Go ends threads that are idle.
	runtime.LockOSThread()
	entered, err := enterDevices(c.devices, c.shm)
	if !entered {
		defer runtime.UnlockOSThread()
	}
	if err == nil {
		err = c.command.Start()
	}
	started <- err
	if err != nil {
		return
	}
	// Until Wait, the process group's ID cannot be another's.
	awaitEnd(c.command.Process.Pid)
	_ = unix.Kill(-c.command.Process.Pid, unix.SIGKILL) // it may be empty
	c.end = c.command.Wait()
	close(c.ended)
}

// awaitEnd leaves the ended child as it is.
func awaitEnd(pid int) {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Ended implements Process.
func (c *child) Ended() <-chan struct{} { return c.ended }

// End implements Process.
func (c *child) End() string {
	how := "exit status 0"
	if c.end != nil {
		how = c.end.Error()
	}
	if said := driverroot.Said(c.output.String(), 2); said != "" {
		return fmt.Sprintf("%s ended with %s and said %q", controlProgram, how, said)
	}
	return fmt.Sprintf("%s ended with %s", controlProgram, how)
}

// Terminate implements Process.
func (c *child) Terminate() {
	select {
	case <-c.ended: // its process group may be another's
	default:
		_ = unix.Kill(-c.command.Process.Pid, unix.SIGTERM) // it may have ended meanwhile
	}
}

// Ask implements Runner.
func (p *Programs) Ask(ctx context.Context, place Place, question string) (string, error) {
	command, err := p.command(place)
	if err != nil {
		return "", err
	}
	var output driverroot.Output
	command.Stdin = strings.NewReader(question + "\n")
	command.Stdout, command.Stderr = &output, &output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := runBounded(ctx, command); err != nil {
		return "", fmt.Errorf("%w: it said %q", err, driverroot.Said(output.String(), 1))
	}
	return output.String(), nil
}

// runBounded is for a command that was made without a context.
func runBounded(ctx context.Context, command *exec.Cmd) error {
	ended := make(chan error, 1)
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for Pdeathsig, as in child.run
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err == nil {
			ended <- command.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		_ = command.Process.Kill() // it may have ended meanwhile
		if err := <-ended; err == nil {
			return nil // it was faster
		}
		return context.Cause(ctx)
	}
}

// Sweep implements Runner. It finds processes by what they were started with,
// because a server may have left the process group, and may have outlived an earlier
// supervisor.
func (p *Programs) Sweep(ctx context.Context, place Place) error {
	left := 0
	err := poll(ctx, func() (done bool, err error) {
		left, err = killAll(place)
		return left == 0, err
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%d processes of MPS do not end although they were killed, as when the kernel driver hangs: %w: look at the node's kernel log", left, err)
	}
	return err
}

// killAll kills the place's processes and returns how many there were.
func killAll(place Place) (found int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for processes of MPS: %w", err)
	}
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() || !belongs(pid, place) {
			continue
		}
		found++
		if err := kill(pid, place); err != nil {
			return found, fmt.Errorf("kill process %d of MPS: %w", pid, err)
		}
	}
	return found, nil
}

// belongs tells whether a process is MPS's and of the place. One that has ended
// has no environment any more.
func belongs(pid int, place Place) bool {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || strings.TrimSpace(string(name)) != comm {
		return false
	}
	environment, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	for variable := range bytes.SplitSeq(environment, []byte{0}) {
		if bytes.HasPrefix(variable, []byte(pipeVariable+string(place)+"/")) {
			return true
		}
	}
	return false
}

// kill makes sure that the process is still the one that was looked at.
func kill(pid int, place Place) error {
	descriptor, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(descriptor) }()
	if !belongs(pid, place) {
		return nil
	}
	if err := unix.PidfdSendSignal(descriptor, unix.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}
