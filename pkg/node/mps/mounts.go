package mps

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CheckShm makes sure that servers which this process starts hand memory to clients through
// the clients' directory: that shm, which is /dev/shm except in tests, is that of the MPS root.
func CheckShm(path, shm string) error {
	own := root(filepath.Clean(path)).shm()
	mounted, err := os.Stat(shm)
	if err != nil {
		return fmt.Errorf("look at the shared memory of this container: %w", err)
	}
	if wanted, err := os.Stat(own); err != nil || !os.SameFile(mounted, wanted) {
		return fmt.Errorf("%s is not the directory %s of the node, which MPS clients have as their /dev/shm: mount it there, as the chart's DaemonSet does", shm, own)
	}
	return nil
}

// IgnoreLinks mounts shm, for which CheckShm has found the root's directory, so that symbolic
// links in it are not followed. Every client can make links there, also as root of its
// container, and servers that are root of the node open files there by name. It needs Linux 5.14.
func IgnoreLinks(shm string) error {
	err := unix.MountSetattr(unix.AT_FDCWD, shm, 0, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSYMFOLLOW})
	if err != nil {
		return fmt.Errorf("mount %s so that it follows no symbolic links: %w", shm, err)
	}
	return nil
}

// enterDevices makes dir the /dev of this thread and of the processes that it starts, with
// shm in it. If entered, the thread must end afterwards: no other goroutine may get it. It
// is not entered if dir is /dev already.
func enterDevices(dir, shm string) (entered bool, err error) {
	const dev = "/dev"
	wanted, err := os.Stat(dir)
	if err != nil {
		return false, fmt.Errorf("look for the device nodes of the NVIDIA driver: %w", err)
	}
	if own, err := os.Stat(dev); err == nil && os.SameFile(own, wanted) {
		return false, nil
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return false, fmt.Errorf("leave the mounts of this container: %w: run it privileged, as the chart does", err)
	}
	for _, mount := range []struct {
		from, to string
		flags    uintptr
	}{
		{"", "/", unix.MS_REC | unix.MS_PRIVATE},
		{dir, dev, unix.MS_REC | unix.MS_BIND},
		{shm, filepath.Join(dev, "shm"), unix.MS_BIND},
	} {
		if err := unix.Mount(mount.from, mount.to, "", mount.flags, ""); err != nil {
			return true, fmt.Errorf("make %s the /dev of an MPS control daemon: mount %s: %w", dir, mount.to, err)
		}
	}
	return true, nil
}
