// Package devnode owns what the plugin makes in the host's /dev: links in /dev/char,
// and the capability devices of MIG, if NVIDIA's own programs have not made them.
// It never decides which container may use a device, and never removes one of the driver.
package devnode

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Host is the path of the host's root in this process. Only its dev is needed. If it is empty,
// nothing is made.
type Host string

// Directories are those of a Host in which devices and links are made.
var Directories = []string{links, "/dev/nvidia-caps"}

const links = "/dev/char"

// Link makes /dev/char/MAJOR:MINOR lead to the device, whose path is the host's. When
// systemd applies a container's device rules again, at daemon-reload, it looks there,
// and drops a device that it does not find: NVIDIA/nvidia-container-toolkit#48. The
// kernel makes such links for the devices of its own classes, which these are not.
func (h Host) Link(path string, major, minor int64) error {
	if h == "" {
		return nil
	}
	name := filepath.Join(string(h), links, fmt.Sprintf("%d:%d", major, minor))
	if target, err := os.Readlink(name); err == nil {
		if !filepath.IsAbs(target) {
			target = filepath.Join(links, target)
		}
		if target == path {
			return nil
		}
	}
	draft := name + "." + rand.Text()
	err := os.Symlink(path, draft)
	if err == nil {
		err = os.Rename(draft, name)
	}
	if err != nil {
		_ = os.Remove(draft)
		return fmt.Errorf("link to %s in the host's %s: %w", path, links, err)
	}
	return nil
}

// Make makes a character device at a path of the host, unless it is there.
func (h Host) Make(path string, major, minor int64, mode fs.FileMode) error {
	if h == "" {
		return nil
	}
	local, device := filepath.Join(string(h), path), unix.Mkdev(uint32(major), uint32(minor))
	is := func() bool {
		var stat unix.Stat_t
		return unix.Lstat(local, &stat) == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR && stat.Rdev == device
	}
	if is() {
		return nil
	}
	// A device with another number is there, as after the driver was loaded again.
	err := os.Remove(local)
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = unix.Mknod(local, unix.S_IFCHR|uint32(mode.Perm()), int(device))
	}
	if err == nil {
		err = os.Chmod(local, mode.Perm()) // the umask does not apply to a device
	}
	if err != nil && !is() { // another process was faster
		return fmt.Errorf("make the device node %s on the host: %w", path, err)
	}
	return nil
}
