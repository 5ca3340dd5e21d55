package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the kernel is given to finish with processes that were
// killed: until then their cgroups and mounts are busy.
const patience = 10 * time.Second

// Clean removes what a cluster whose processes are gone can leave: its cgroup
// unless the name is empty, mounts below its directory, and the directory but for the names in keep. The
// file named lock goes last, and stays when anything else does: it is what a
// directory is known by as a cluster's. It is called outside the sandbox:
// inside, the directory shows parts of the machine.
func Clean(dir, cgroup, lock string, keep ...string) error {
	err := unmountBelow(dir)
	if cgroup != "" {
		err = errors.Join(err, RemoveCgroup(cgroup))
	}
	if left, listErr := mountPoints(dir); listErr != nil || len(left) > 0 {
		// Removing files through a mount would remove files of others.
		return errors.Join(err, listErr, fmt.Errorf("%s is kept because %v are still mounted there: unmount them and run `cluster down`", dir, left))
	}
	if err != nil {
		return err
	}
	return removeAllBut(dir, lock, keep, os.RemoveAll)
}

// removeAllBut removes a directory by means of remove, except for the names in
// keep.
func removeAllBut(dir, lock string, keep []string, remove func(path string) error) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing what the cluster left behind: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if entry.Name() != lock && !slices.Contains(keep, entry.Name()) {
			path := filepath.Join(dir, entry.Name())
			errs = append(errs, retryBusy(func() error { return remove(path) }))
		}
	}
	if err := errors.Join(errs...); err != nil || len(keep) > 0 {
		return err
	}
	if err := remove(filepath.Join(dir, lock)); err != nil {
		return err
	}
	// From here on another process may hold the directory with a lock of its own.
	err = os.Remove(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// retryBusy repeats an operation while the kernel still uses what it works on.
func retryBusy(operation func() error) error {
	deadline := time.Now().Add(patience)
	for {
		err := operation()
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
}
