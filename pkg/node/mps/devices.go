package mps

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// enterDevices makes a directory the /dev of this thread and of the processes that it
// starts, with the root's shared memory in it. The thread must end afterwards: no other
// goroutine may get it. Entered is false where the directory is /dev already.
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
