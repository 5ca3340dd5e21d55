// Package selinux sets the SELinux type of files that the plugin shares with containers. It does
// nothing on a kernel without SELinux, and never changes a policy.
package selinux

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	attribute = "security.selinux"
	// label lets every container use a file. The policy package container-selinux, which every
	// container runtime needs, has the type. Attributes end in NUL.
	label = "system_u:object_r:container_file_t:s0\x00"
)

// active reports whether the kernel has SELinux: only then it knows selinuxfs.
var active = sync.OnceValue(func() bool {
	content, err := os.ReadFile("/proc/filesystems")
	return err == nil && bytes.Contains(content, []byte("\tselinuxfs\n"))
})

// Share lets containers use files and directories, and later files in the directories. By default
// they have a type of the host, which containers may not use.
func Share(paths ...string) error { return share(active(), unix.Lsetxattr, paths) }

func share(active bool, set func(path, attribute string, value []byte, flags int) error, paths []string) error {
	if !active {
		return nil
	}
	for _, path := range paths {
		err := set(path, attribute, []byte(label), 0)
		// If the policy has no such type, containers are not confined. If the file system has no
		// labels, its mount options decide.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("give %s the SELinux type container_file_t: %w: run the plugin privileged, as the chart does", path, err)
		}
	}
	return nil
}
