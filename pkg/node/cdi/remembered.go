package cdi

import (
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	cdispec "tags.cncf.io/container-device-interface/specs-go"
)

// remembered are edits, and where this process sees what they name.
type remembered struct {
	edits cdispec.ContainerEdits
	// nodes are device nodes. files come from few directories, which are looked at instead.
	nodes, files, directories []string
	// seen are the directories as they were when all files were there.
	seen []directory
}

// directory changes with the names in a directory, and with what is mounted there.
type directory struct {
	device, inode uint64
	modified      unix.Timespec
}

// settled is how long ago a directory must have changed: what comes and goes within one
// tick of the kernel's clock does not change its time.
const settled = time.Second

func (e *Edits) remember(edits cdispec.ContainerEdits) *remembered {
	r := &remembered{edits: edits}
	for _, node := range edits.DeviceNodes {
		r.nodes = append(r.nodes, e.local(hostPath(node), e.roots.hostDev(), e.roots.localDev()))
	}
	for _, mount := range edits.Mounts {
		path := e.local(mount.HostPath, e.roots.Host, e.roots.Local)
		r.files = append(r.files, path)
		r.directories = append(r.directories, filepath.Dir(path))
	}
	slices.Sort(r.directories)
	r.directories = slices.Compact(r.directories)
	return r
}

// complete reports whether every file in the edits still exists.
func (r *remembered) complete() bool {
	if slices.ContainsFunc(r.nodes, missing) {
		return false
	}
	now, sure := r.look()
	if sure && slices.Equal(now, r.seen) {
		return true
	}
	r.seen = nil
	if slices.ContainsFunc(r.files, missing) {
		return false
	}
	if sure {
		r.seen = now
	}
	return true
}

// look returns the directories as they are now. It is not sure if one of them has changed just
// now, or cannot be read.
func (r *remembered) look() (now []directory, sure bool) {
	before := time.Now().Add(-settled).UnixNano()
	now = make([]directory, len(r.directories))
	for i, path := range r.directories {
		var stat unix.Stat_t
		if unix.Stat(path, &stat) != nil || stat.Mtim.Nano() > before {
			return nil, false
		}
		now[i] = directory{device: stat.Dev, inode: stat.Ino, modified: stat.Mtim}
	}
	return now, true
}

func missing(path string) bool { return !exists(path) }
