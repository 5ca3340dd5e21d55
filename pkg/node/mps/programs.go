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

	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

const (
	controlProgram = "nvidia-cuda-mps-control"
	// comm is the kernel's name for processes of MPS: it keeps 15 bytes.
	comm = "nvidia-cuda-mps"

	pipeVariable = "CUDA_MPS_PIPE_DIRECTORY="
	// outputWait bounds the wait for the output of an ended process: a child may keep the
	// pipe open.
	outputWait = time.Second
)

// Tools finds the NVIDIA driver's programs and knows what they need to run.
type Tools interface {
	Find(program string) (string, error)
	Environment() ([]string, error)
	// Devices is the directory with the device nodes that the plugin gives to
	// containers, which is not always this process's /dev.
	Devices() string
}

// Programs are those of an installed driver.
type Programs struct{ tools Tools }

// NewPrograms looks for the programs when they are needed.
func NewPrograms(tools Tools) *Programs { return &Programs{tools: tools} }

// LibraryLinks is the directory in an MPS root for driverroot's links.
func LibraryLinks(path string) string { return filepath.Join(path, linksDir) }

// command is the control program, for a place. It dies with the thread that starts it: the
// kernel takes the end of the thread for the end of the parent (prctl(2), PR_SET_PDEATHSIG),
// and Go ends threads that are idle.
func (p *Programs) command(ctx context.Context, place Place, output *driverroot.Output, arguments ...string) (*exec.Cmd, error) {
	path, err := p.tools.Find(controlProgram)
	if err != nil {
		return nil, err
	}
	environment, err := p.tools.Environment()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, path, arguments...)
	command.Env = append(environment, pipeVariable+place.Pipe(), "CUDA_MPS_LOG_DIRECTORY="+place.Log())
	command.Dir = "/"
	command.Stdout, command.Stderr = output, output
	command.WaitDelay = outputWait
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
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
	child := &child{devices: p.tools.Devices(), shm: place.shm(), ended: make(chan struct{})}
	var err error
	if child.command, err = p.command(context.Background(), place, &child.output, arguments...); err != nil {
		return nil, err
	}
	child.command.Env = append(child.command.Env, "CUDA_VISIBLE_DEVICES="+strings.Join(daemon.Devices, ","))
	started := make(chan error)
	go child.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("run %s: %w", child.command.Path, err)
	}
	return child, nil
}

// child is a control daemon that this process has started.
type child struct {
	command *exec.Cmd
	// devices becomes the process's /dev, and shm the /dev/shm in it.
	devices, shm string
	output       driverroot.Output
	ended        chan struct{}
	end          error // of the process, once ended is closed
}

func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	entered, err := enterDevices(c.devices, c.shm)
	if !entered {
		defer runtime.UnlockOSThread()
	}
	if err == nil {
		err = c.command.Start()
	}
	started <- err
	if err == nil {
		c.end = c.command.Wait()
		close(c.ended)
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
	if printed := driverroot.Said(c.output.String(), 2); printed != "" {
		return fmt.Sprintf("%s ended with %s and printed %q", controlProgram, how, printed)
	}
	return fmt.Sprintf("%s ended with %s", controlProgram, how)
}

// Terminate implements Process.
func (c *child) Terminate() {
	_ = c.command.Process.Signal(syscall.SIGTERM) // it may have ended
}

// Ask implements Runner.
func (p *Programs) Ask(ctx context.Context, place Place, question string) (string, error) {
	var output driverroot.Output
	command, err := p.command(ctx, place, &output)
	if err != nil {
		return "", err
	}
	command.Stdin = strings.NewReader(question + "\n")
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := command.Run(); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return "", fmt.Errorf("%w: it printed %q", err, driverroot.Said(output.String(), 1))
	}
	return output.String(), nil
}

// Sweep implements Runner. It finds processes by their name and environment, because a
// server may have outlived its control daemon, and an earlier supervisor.
func (p *Programs) Sweep(ctx context.Context, place Place) error {
	left := 0
	err := poll(ctx, func() (done bool, err error) {
		left, err = killAll(place)
		return left == 0, err
	})
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%d killed processes of MPS do not end, as when the kernel driver hangs: %w: look at the node's kernel log", left, err)
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
		process, err := os.FindProcess(pid) // by a pidfd, which no other process can get
		if err == nil && belongs(pid, place) {
			err = process.Kill()
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return found, fmt.Errorf("kill process %d of MPS: %w", pid, err)
		}
		_ = process.Release()
	}
	return found, nil
}

// belongs reports whether a process is one of MPS in the place. One that has ended has no
// environment any more.
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
