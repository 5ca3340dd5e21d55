package lock

import (
	"context"
	"errors"
	"math"
	"os"
	"syscall"
	"time"

	waiting "k8s.io/apimachinery/pkg/util/wait"
)

// Mode is whether several processes may hold a file lock at once.
type Mode int

const (
	// Shared locks exclude Exclusive ones only.
	Shared Mode = syscall.LOCK_SH
	// Exclusive locks exclude every other lock.
	Exclusive Mode = syscall.LOCK_EX
)

// pauses are between two attempts. Another process holds a lock for the
// millisecond or so that a prepare takes, hence the short start; it may hang for
// long, hence the growth.
var pauses = waiting.Backoff{Duration: 500 * time.Microsecond, Factor: 2, Cap: 20 * time.Millisecond, Steps: math.MaxInt}

// File takes a flock(2) of the open file or directory f, waiting until ctx ends.
//
// The lock belongs to the open file description, so a second open of the same
// path competes with the first even inside one process, and the kernel drops the
// lock when its holder dies, however it dies. It is given up by closing f. The error
// wraps the context's cause if the wait was cut short.
func File(ctx context.Context, f *os.File, mode Mode) error {
	return wait(ctx, func() error {
		return control(f, "flock", func(fd uintptr) error { return syscall.Flock(int(fd), int(mode)|syscall.LOCK_NB) })
	})
}

// wait takes a lock, until ctx ends. A call that blocks would pin a thread and could not be
// cancelled.
func wait(ctx context.Context, take func() error) error {
	err := pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) {
		err := take()
		if errors.Is(err, syscall.EAGAIN) {
			return false, nil // it is held elsewhere
		}
		return err == nil, err
	})
	if waiting.Interrupted(err) {
		return context.Cause(ctx)
	}
	return err
}

// control does something to the file, again if a signal interrupts it.
func control(f *os.File, what string, do func(fd uintptr) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var doErr error
	err = conn.Control(func(fd uintptr) {
		for {
			if doErr = do(fd); !errors.Is(doErr, syscall.EINTR) {
				return
			}
		}
	})
	if err == nil && doErr != nil {
		err = &os.PathError{Op: what, Path: f.Name(), Err: doErr}
	}
	return err
}
