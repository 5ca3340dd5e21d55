// Package timeslice sets how long the processes that share a GPU run before the
// next one may. NVML has no call for it, so it runs the driver's nvidia-smi. It
// never decides which GPU is shared.
package timeslice

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

// errNotSupported: this GPU, as it is configured now, has no time-slice to set. It
// is a kind of errors.ErrUnsupported.
var errNotSupported error = notSupported{}

type notSupported struct{}

func (notSupported) Error() string        { return "the GPU does not support it" }
func (notSupported) Is(target error) bool { return target == errors.ErrUnsupported }

const (
	program = "nvidia-smi"
	// patience bounds a call that nobody else bounds: nvidia-smi hangs with a
	// kernel driver that hangs.
	patience = 30 * time.Second
	// killWait is how long a killed nvidia-smi's output is waited for.
	killWait = time.Second
)

// Exit statuses of nvidia-smi, from the section RETURN VALUE of its manual page.
const (
	exitNotSupported   = 3
	exitNotImplemented = 13
)

// Tools finds the NVIDIA driver's programs and tells what they need to run.
type Tools interface {
	Find(program string) (string, error)
	Environment() ([]string, error)
}

// Setter sets time-slices with the nvidia-smi of an installed driver. It is safe
// for concurrent use.
type Setter struct{ tools Tools }

// NewSetter looks for nvidia-smi when a time-slice is set.
func NewSetter(tools Tools) *Setter { return &Setter{tools: tools} }

// Set gives the GPU a time-slice, which lasts until it is given another one or the
// kernel driver lets go of the GPU. The error is errors.ErrUnsupported where the GPU has
// none, as before Volta and with MIG.
func (s *Setter) Set(ctx context.Context, uuid string, interval gpu.Interval) error {
	if err := s.set(ctx, uuid, interval); err != nil {
		return fmt.Errorf("set the time-slice of GPU %s to %s: %w", uuid, interval, err)
	}
	return nil
}

func (s *Setter) set(ctx context.Context, uuid string, interval gpu.Interval) error {
	number := slices.Index(gpu.Intervals, interval)
	if number < 0 {
		return fmt.Errorf("no such interval: use one of %v", gpu.Intervals)
	}
	path, err := s.tools.Find(program)
	if err != nil {
		return err
	}
	environment, err := s.tools.Environment()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var output driverroot.Output
	command := exec.CommandContext(ctx, path, "compute-policy", "-i", uuid, "--set-timeslice", strconv.Itoa(number))
	command.Env = environment
	command.Stdout, command.Stderr = &output, &output
	// One that outlived this process could set the time-slice after the next process
	// has undone it. The kernel takes the end of a thread for the end of the parent
	// (prctl(2), PR_SET_PDEATHSIG), and Go ends threads that are idle.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
	command.WaitDelay = killWait
	err = command.Run()
	if ctx.Err() != nil && err != nil {
		return fmt.Errorf("%s did not end in time: %w", path, context.Cause(ctx))
	}
	return judge(path, err, output.String())
}

// judge reads the answer: a refusal may come with any exit status,
// so its words count, too.
func judge(path string, err error, output string) error {
	said := driverroot.Said(output, 1)
	if said == "" {
		said = "nothing"
	}
	var exit *exec.ExitError
	code := 0
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	}
	switch {
	case code == exitNotSupported, code == exitNotImplemented, strings.Contains(strings.ToLower(output), "not supported"):
		return fmt.Errorf("%w: %s said %q: offer its shares with the interval %s", errNotSupported, path, said, gpu.DefaultInterval)
	case err != nil:
		return fmt.Errorf("run %s: %w: it said %q", path, err, said)
	}
	return nil
}
