package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
)

// ErrHeld says that a cluster's keeper is alive.
var ErrHeld = errors.New("the cluster is running")

// glance is longer than those hold a lock who only look whether there is a
// keeper.
const glance = 200 * time.Millisecond

// Hold takes the lock of the cluster in dir, which is made when it is missing.
// It fails with ErrHeld while a keeper lives.
func Hold(dir layout.Dir) (*os.File, error) {
	for deadline := time.Now().Add(glance); ; {
		if err := os.MkdirAll(string(dir), 0o755); err != nil {
			return nil, fmt.Errorf("making the cluster's directory: %w", err)
		}
		lock, err := take(dir, os.O_CREATE, unix.LOCK_EX)
		if errors.Is(err, ErrHeld) && time.Now().Before(deadline) {
			time.Sleep(pollInterval)
			continue
		}
		// A keeper on its way out removes the lock, and then the directory.
		if !errors.Is(err, fs.ErrNotExist) {
			return lock, err
		}
	}
}

// take takes a lock that is there; with os.O_CREATE it makes one. It fails with
// fs.ErrNotExist when there is none, or only one that is just being removed. Those
// who only ask whether it is held share it (unix.LOCK_SH), so that they do not
// take each other for a holder.
func take(dir layout.Dir, flags, how int) (*os.File, error) {
	file, err := os.OpenFile(dir.Lock(), os.O_RDWR|flags, 0o644)
	if err != nil {
		return nil, fmt.Errorf("opening the cluster's lock: %w", err)
	}
	if err := unix.Flock(int(file.Fd()), how|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, ErrHeld
		}
		return nil, fmt.Errorf("locking %s: %w", dir.Lock(), err)
	}
	if !current(file, dir.Lock()) {
		file.Close()
		return nil, fs.ErrNotExist
	}
	return file, nil
}

// current reports whether file is still what its path leads to.
func current(file *os.File, path string) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(path)
	return err == nil && os.SameFile(held, named)
}
