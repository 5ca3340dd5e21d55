package keeper

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/sandbox"
)

const (
	// politeness is how long a keeper is given to take its cluster down before
	// it is killed. It covers grace and the removal.
	politeness = 30 * time.Second
	// pollInterval is for conditions that only the kernel knows.
	pollInterval = 20 * time.Millisecond
)

// Running reports whether a keeper holds the cluster in dir.
func Running(dir layout.Dir) (bool, error) {
	lock, err := take(dir, 0, unix.LOCK_SH)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case errors.Is(err, ErrHeld):
		return true, nil
	case err != nil:
		return false, err
	}
	return false, lock.Close()
}

// End takes the cluster in dir down, in whatever state it is, and removes all
// that it left. It reports whether there was anything.
func End(dir layout.Dir) (bool, error) {
	if _, err := os.Stat(string(dir)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := refuseForeign(dir); err != nil {
		return false, err
	}
	if err := endKeeper(dir); err != nil {
		return false, err
	}
	if err := removeDead(dir); err != nil {
		return true, fmt.Errorf("removing what is left in %s: %w", dir, err)
	}
	return true, nil
}

// removeDead removes what a cluster without a keeper left. It fails with ErrHeld when
// there is a keeper, or another process removes it.
func removeDead(dir layout.Dir) error {
	lock, err := take(dir, 0, unix.LOCK_EX)
	if errors.Is(err, fs.ErrNotExist) {
		return removeEmpty(dir)
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := killInit(dir); err != nil {
		return err
	}
	return clean(dir)
}

// removeEmpty removes a directory in which no cluster was begun. One that is not
// empty any more belongs to another process now.
func removeEmpty(dir layout.Dir) error {
	err := os.Remove(string(dir))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) {
		return nil
	}
	return err
}

// clean removes what the sandbox left, but for the paths in keep. The caller
// holds the lock.
func clean(dir layout.Dir, keep ...string) error {
	var names []string
	for _, path := range keep {
		names = append(names, filepath.Base(path))
	}
	cgroup := dir.Cgroup()
	if _, err := os.Stat(dir.CgroupMade()); errors.Is(err, fs.ErrNotExist) {
		cgroup = ""
	}
	return sandbox.Clean(string(dir), cgroup, filepath.Base(dir.Lock()), names...)
}

// refuseForeign keeps a mistyped directory from being removed.
func refuseForeign(dir layout.Dir) error {
	if _, err := os.Stat(dir.Lock()); err == nil {
		return nil
	}
	entries, err := os.ReadDir(string(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("looking for a cluster in %s: %w", dir, err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("%s holds files and no cluster's lock: it is left alone; remove it yourself if a cluster left it", dir)
	}
	return nil
}

// endKeeper ends the keeper, by asking and then by force.
func endKeeper(dir layout.Dir) error {
	running, err := Running(dir)
	if err != nil || !running {
		return err
	}
	keeper, err := readMark(dir.Lock())
	if err != nil {
		return err
	}
	if keeper.pid == 0 {
		return fmt.Errorf("the cluster in %s is just being started: wait for it", dir)
	}
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := keeper.signal(signal); err != nil {
			return fmt.Errorf("telling the cluster's keeper, process %d, to end: %w", keeper.pid, err)
		}
		for deadline := time.Now().Add(politeness); time.Now().Before(deadline); time.Sleep(pollInterval) {
			// It may be a child without a waiting parent, so its own existence
			// tells less than its lock.
			if running, err := Running(dir); err != nil || !running {
				return err
			}
		}
	}
	return fmt.Errorf("the cluster's keeper, process %d, does not end: look at it with ps", keeper.pid)
}

// killInit kills the sandbox of a keeper that did not live to do it, and waits
// until every process in it is gone: its init ends last.
func killInit(dir layout.Dir) error {
	init, err := readMark(dir.PID())
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(politeness); init.alive(); time.Sleep(pollInterval) {
		if err := init.signal(syscall.SIGKILL); err != nil {
			return fmt.Errorf("killing the cluster's sandbox, process %d: %w", init.pid, err)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("the cluster's sandbox, process %d, does not end: look at it with ps", init.pid)
		}
	}
	return nil
}

// Reserve makes a directory for a private cluster. A number keeps it shorter
// than os.MkdirTemp would.
func Reserve(prefix string) (layout.Dir, error) {
	for number := 1; ; number++ {
		dir := layout.Dir(prefix + strconv.Itoa(number))
		err := os.Mkdir(string(dir), 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("making a directory for the cluster: %w", err)
		}
		return dir, nil
	}
}

// Sweep removes what private clusters left whose keeper was killed. Any number
// of processes may sweep at the same time.
func Sweep(prefix string) error {
	locks, err := filepath.Glob(filepath.Join(prefix+"*", "lock"))
	if err != nil {
		return fmt.Errorf("looking for clusters that were killed: %w", err)
	}
	var errs []error
	for _, lock := range locks {
		dir := layout.Dir(filepath.Dir(lock))
		// Who holds it lives, or is removing it already.
		if err := removeDead(dir); err != nil && !errors.Is(err, ErrHeld) {
			errs = append(errs, fmt.Errorf("removing what is left in %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}
