// Package selinux owns the SELinux type of what the plugin lends to containers. Where
// the kernel has no SELinux it does nothing, and it never changes a policy.
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
	// label is that of files that any container may use, of all categories. The
	// policy package container-selinux, which every container runtime brings, has
	// the type. Attributes end in NUL.
	label = "system_u:object_r:container_file_t:s0\x00"
)

// active tells whether the kernel enforces a policy or could: it knows selinuxfs only then.
var active = sync.OnceValue(func() bool {
	content, err := os.ReadFile("/proc/filesystems")
	return err == nil && bytes.Contains(content, []byte("\tselinuxfs\n"))
})

// Share lets containers use files and directories, and what is made in the directories
// later. Otherwise these have the type of where they lie on the host, which processes in
// containers may not use.
func Share(paths ...string) error { return share(active(), unix.Lsetxattr, paths) }

func share(active bool, set func(path, attribute string, value []byte, flags int) error, paths []string) error {
	if !active {
		return nil
	}
	for _, path := range paths {
		err := set(path, attribute, []byte(label), 0)
		// The policy has no such type, so containers are not confined; or the file
		// system has no labels, so that its mount options decide.
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
			return fmt.Errorf("give %s the SELinux type container_file_t: %w: run the plugin privileged, as the chart does", path, err)
		}
	}
	return nil
}
