package lock

import (
	"context"
	"errors"
	"math"
	"os"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Mode says whether a file lock may be held by several at once.
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
var pauses = wait.Backoff{Duration: 500 * time.Microsecond, Factor: 2, Cap: 20 * time.Millisecond, Steps: math.MaxInt}

// File takes a flock(2) of the open file or directory f, waiting until ctx ends.
//
// The lock belongs to the open file description, so a second open of the same
// path competes with the first even inside one process, and the kernel drops the
// lock when its holder dies, however it dies. It is given up by Unlock or by
// closing f. The error wraps the context's cause when the wait was cut short.
func File(ctx context.Context, f *os.File, mode Mode) error {
	// Blocking flock would pin a thread and could not be cancelled.
	err := pauses.DelayFunc().Until(ctx, true, true, func(context.Context) (bool, error) { return tryFile(f, mode) })
	if wait.Interrupted(err) {
		return context.Cause(ctx)
	}
	return err
}

// Unlock gives up what File took. Closing f alone would not do while a child of
// this process, forked and not yet past exec, shares the description.
func Unlock(f *os.File) error {
	return flock(f, syscall.LOCK_UN)
}

// tryFile reports false when somebody else holds the lock.
func tryFile(f *os.File, mode Mode) (bool, error) {
	err := flock(f, int(mode)|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

func flock(f *os.File, how int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	err = conn.Control(func(fd uintptr) {
		for {
			lockErr = syscall.Flock(int(fd), how)
			if !errors.Is(lockErr, syscall.EINTR) {
				return
			}
		}
	})
	if err != nil {
		return err
	}
	if lockErr != nil {
		return &os.PathError{Op: "flock", Path: f.Name(), Err: lockErr}
	}
	return nil
}
