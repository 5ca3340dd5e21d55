package mps

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CheckShm makes sure that servers started by this process hand memory to clients
// through the directory that clients have: that shm, which is /dev/shm unless a test
// says otherwise, is the root's.
func CheckShm(path, shm string) error {
	own := root(filepath.Clean(path)).shm()
	seen, err := os.Stat(shm)
	if err != nil {
		return fmt.Errorf("look at the shared memory of this container: %w", err)
	}
	if wanted, err := os.Stat(own); err != nil || !os.SameFile(seen, wanted) {
		return fmt.Errorf("%s is not the directory %s of the node, which MPS clients have as their /dev/shm: mount it there, as the chart's DaemonSet does", shm, own)
	}
	return nil
}

// outlivesReboot tells whether what is in a directory is still there after a reboot.
func outlivesReboot(path string) (bool, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return false, fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	return stat.Type != unix.TMPFS_MAGIC && stat.Type != unix.RAMFS_MAGIC, nil
}
