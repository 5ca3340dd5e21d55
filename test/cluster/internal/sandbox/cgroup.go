package sandbox

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const cgroupMount = "/sys/fs/cgroup"

// Unified reports whether the machine's cgroups are those of cgroup v2 alone.
func Unified() bool {
	var stat unix.Statfs_t
	return unix.Statfs(cgroupMount, &stat) == nil && stat.Type == unix.CGROUP2_SUPER_MAGIC
}

// CreateCgroup makes the cgroup name in every hierarchy. It replaces one that is
// left over and empty; it fails when one is in use, and then has made none.
func CreateCgroup(name string) error {
	if Unified() {
		if err := delegate(cgroupMount); err != nil {
			return err
		}
	}
	var made []string
	for _, root := range hierarchies() {
		group := filepath.Join(root, name)
		if err := create(group); err != nil {
			for _, group := range made {
				err = errors.Join(err, unix.Rmdir(group))
			}
			return err
		}
		made = append(made, group)
	}
	return nil
}

func create(group string) error {
	err := os.Mkdir(group, 0o755)
	if errors.Is(err, fs.ErrExist) {
		if err := removeTree(group, unix.Rmdir); err != nil {
			return fmt.Errorf("%w: the pods' cgroup %s is another cluster's, whose directory has the same path in another container: choose another --dir", err, group)
		}
		err = os.Mkdir(group, 0o755)
	}
	if err != nil {
		return fmt.Errorf("making the pods' cgroup: %w", err)
	}
	return nil
}

// used are the cgroup v2 controllers that kubelet and runc ask for.
var used = []string{"cpu", "cpuset", "hugetlb", "io", "memory", "pids"}

// delegate lets the children of a cgroup v2 group use its controllers. Without
// it kubelet calls its cgroup root invalid.
func delegate(group string) error {
	controllers, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading which controllers the pods' cgroup can have: %w", err)
	}
	for _, controller := range strings.Fields(string(controllers)) {
		if !slices.Contains(used, controller) {
			continue
		}
		err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		if err != nil {
			return fmt.Errorf("giving the pods' cgroup the controller %s: %w: in a container, move its processes out of the root cgroup first", controller, err)
		}
	}
	return nil
}

// RemoveCgroup kills what is left in the cgroup name and removes it from every
// hierarchy.
func RemoveCgroup(name string) error {
	var errs []error
	for _, root := range hierarchies() {
		errs = append(errs, removeTree(filepath.Join(root, name), empty))
	}
	return errors.Join(errs...)
}

// removeTree removes a cgroup by means of remove, after its children: they are
// directories whose files cannot be removed.
func removeTree(group string, remove func(group string) error) error {
	entries, err := os.ReadDir(group)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listing the cgroup %s: %w", group, err)
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeTree(filepath.Join(group, entry.Name()), remove); err != nil {
				return err
			}
		}
	}
	if err := remove(group); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing the cgroup %s: %w", group, err)
	}
	return nil
}

// empty removes a cgroup once its members are killed.
func empty(group string) error {
	return retryBusy(func() error {
		killGroup(group)
		return unix.Rmdir(group)
	})
}

// killGroup kills the members of one cgroup.
func killGroup(group string) {
	members, err := os.ReadFile(filepath.Join(group, "cgroup.procs"))
	if err != nil {
		return
	}
	for _, member := range bytes.Fields(members) {
		var pid int
		if _, err := fmt.Sscan(string(member), &pid); err == nil && pid > 1 && pid != os.Getpid() {
			// It may be gone already; otherwise the removal fails.
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// hierarchies are the mount points of the machine's cgroup hierarchies.
func hierarchies() []string {
	if Unified() {
		return []string{cgroupMount}
	}
	entries, err := os.ReadDir(cgroupMount)
	if err != nil {
		return nil
	}
	var roots []string
	for _, entry := range entries {
		root := filepath.Join(cgroupMount, entry.Name())
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil && entry.IsDir() {
			roots = append(roots, root)
		}
	}
	return roots
}
