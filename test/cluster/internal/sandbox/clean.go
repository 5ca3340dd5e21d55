package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long the kernel is given to finish with processes that were
// killed: until then their cgroups and mounts are busy.
const patience = 10 * time.Second

// Clean removes what a cluster whose processes are gone can leave: its cgroup,
// mounts below its directory, and the directory but for the names in keep. It
// is called outside the sandbox: inside, the directory shows parts of the
// machine.
func Clean(dir, cgroup string, keep ...string) error {
	err := errors.Join(RemoveCgroup(cgroup), unmountBelow(dir))
	if left, listErr := mountPoints(dir); listErr != nil || len(left) > 0 {
		// Removing files through a mount would remove somebody else's.
		return errors.Join(err, listErr, fmt.Errorf("%s is kept because %v are still mounted there: unmount them and run `cluster down`", dir, left))
	}
	return errors.Join(err, removeAllBut(dir, keep))
}

func removeAllBut(dir string, keep []string) error {
	kept := map[string]bool{}
	for _, name := range keep {
		kept[name] = true
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing what the cluster left behind: %w", err)
	}
	var errs []error
	for _, entry := range entries {
		if !kept[entry.Name()] {
			path := filepath.Join(dir, entry.Name())
			errs = append(errs, retryBusy(func() error { return os.RemoveAll(path) }))
		}
	}
	if len(keep) > 0 {
		return errors.Join(errs...)
	}
	if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
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
