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

// IgnoreLinks makes that no symbolic link in shm is followed, where CheckShm has found the
// root's directory to be mounted. Every client can make links there, also as root of its
// container, and servers that are root of the node open files there by name. It needs
// Linux 5.14.
func IgnoreLinks(shm string) error {
	err := unix.MountSetattr(unix.AT_FDCWD, shm, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSYMFOLLOW})
	if err != nil {
		return fmt.Errorf("mount %s so that it follows no symbolic links: %w", shm, err)
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
