package driverroot

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// killWait is how long to wait for the end and the output of a killed program.
const killWait = time.Second

// ErrSlow: a program did not end in time.
var ErrSlow error = slow{}

type slow struct{}

func (slow) Error() string        { return "it did not end in time" }
func (slow) Is(target error) bool { return target == context.DeadlineExceeded }

// Run runs a program of the driver until it or ctx ends. It returns the output, also beside an
// *exec.ExitError. Other errors name the program. They are ErrMissing, or ErrSlow for a program
// that hangs, for example because the kernel driver does.
func (t *Tools) Run(ctx context.Context, program string, arguments ...string) (path, printed string, err error) {
	if path, err = t.Find(program); err != nil {
		return "", "", err
	}
	environment, err := t.Environment()
	if err != nil {
		return path, "", err
	}
	output := new(Output)
	ended := make(chan error, 1)
	go func() {
		// A program that outlives this process could change a GPU which the next process uses.
		// The kernel takes the end of a thread for the end of the parent (prctl(2),
		// PR_SET_PDEATHSIG), and Go ends threads that are idle.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		command := exec.CommandContext(ctx, path, arguments...)
		command.Env = environment
		command.Stdout, command.Stderr = output, output
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }
		command.WaitDelay = killWait
		ended <- command.Run()
	}()
	select {
	case err = <-ended:
	case <-ctx.Done():
		select {
		case err = <-ended:
		case <-time.After(2 * killWait): // not even SIGKILL ends one that waits in the kernel
			err = context.Cause(ctx)
		}
	}
	if ctx.Err() != nil && err != nil {
		return path, output.String(), fmt.Errorf("%s: %w (%w)", path, ErrSlow, context.Cause(ctx))
	}
	return path, output.String(), err
}
