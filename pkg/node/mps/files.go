package mps

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
	"github.com/mica-gpu/mica/pkg/node/lock"
)

const (
	specsDir    = "daemons"
	statusesDir = "status"
	shmDir      = "shm"
	linksDir    = "libraries"
	// The supervisor holds lockFile while it runs, and servingFile once no status is of an
	// earlier supervisor.
	lockFile    = "supervisor.lock"
	servingFile = "serving.lock"

	fileSuffix  = ".json"
	draftSuffix = ".tmp"
	// maxFile bounds what is read of a file; a daemon of 16 GPUs has 2 KiB.
	maxFile = 64 << 10

	// maxSocketPath is what fits sun_path of sockaddr_un with its final NUL (unix(7)).
	// longestSocket exceeds the names that MPS gives to sockets.
	maxSocketPath, longestSocket = 107, len("/nvidia-cuda-mps-server.4194304")
)

// reserved names in the root cannot be IDs.
var reserved = []string{specsDir, statusesDir, shmDir, lockFile, servingFile, linksDir}

// root is the directory that the processes of one node share. It has the same path on the
// host, for the plugin and for the supervisor.
type root string

func (r root) specs() string           { return filepath.Join(string(r), specsDir) }
func (r root) statuses() string        { return filepath.Join(string(r), statusesDir) }
func (r root) spec(id string) string   { return filepath.Join(r.specs(), id+fileSuffix) }
func (r root) status(id string) string { return filepath.Join(r.statuses(), id+fileSuffix) }
func (r root) shm() string             { return filepath.Join(string(r), shmDir) }
func (r root) place(id string) Place   { return Place(filepath.Join(string(r), id)) }

// Place is the directory of one daemon.
type Place string

// Pipe is where its clients find it.
func (p Place) Pipe() string { return filepath.Join(string(p), "pipe") }

// Log has the daemon's log files.
func (p Place) Log() string { return filepath.Join(string(p), "log") }

// shm is what the servers and clients of all daemons have as /dev/shm.
func (p Place) shm() string { return root(filepath.Dir(string(p))).shm() }

// ids lists the daemons that have a file in a directory of the root.
func ids(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the MPS control daemons: %w", err)
	}
	var found []string
	for _, entry := range entries {
		if id, isFile := strings.CutSuffix(entry.Name(), fileSuffix); isFile && checkID(id) == nil {
			found = append(found, id)
		}
	}
	return found, nil
}

// readSpec returns nil if the daemon is not desired. It refuses unknown fields: a limit
// that a newer version has written must not be left out.
func (r root) readSpec(id string) (*Daemon, error) {
	var spec Daemon
	err := read(r.spec(id), &spec, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = spec.check()
	}
	if err == nil && spec.ID != id {
		err = fmt.Errorf("%w: %s is about %s", errDamaged, r.spec(id), spec.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("read the desired state of MPS control daemon %s: %w", id, err)
	}
	return &spec, nil
}

// readStatus returns nil if there is none. The supervisor replaces a damaged one.
func (r root) readStatus(id string) (*Status, error) {
	var status Status
	err := read(r.status(id), &status, false) // a newer supervisor may write more fields
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errDamaged) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the status of MPS control daemon %s: %w", id, err)
	}
	return &status, nil
}

// forget removes the place and the status of a daemon that does not run. The status goes
// last: a supervisor finds remains by it.
func (r root) forget(id string) error {
	if err := os.RemoveAll(string(r.place(id))); err != nil {
		return err
	}
	return remove(r.status(id))
}

// errDamaged is a file whose content cannot be used.
var errDamaged = errors.New("the file is damaged, or written by another version")

// openRegular follows neither a link nor a pipe, which would block: in some of the
// directories, every user can make them.
func openRegular(path string, flag int) (*os.File, fs.FileInfo, error) {
	file, err := os.OpenFile(path, flag|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link, or a pipe to write to
		return nil, nil, fmt.Errorf("%w: %s is no regular file", errDamaged, path)
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Mode().IsRegular() {
		return file, info, nil
	}
	_ = file.Close() // nothing was written
	return nil, nil, errors.Join(fmt.Errorf("%w: %s is no regular file", errDamaged, path), err)
}

// read decodes a regular file of bounded size. A missing file is fs.ErrNotExist.
func read(path string, into any, strict bool) error {
	file, _, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxFile))
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("%w: %s: %w", errDamaged, path, err)
	}
	if decoder.More() {
		return fmt.Errorf("%w: %s has more than one value", errDamaged, path)
	}
	return nil
}

// write replaces a file in a directory that exists. No two processes write the same one:
// the plugin locks claims and GPUs, and there is one supervisor.
func write(path string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, path+draftSuffix, bytes.NewReader(append(content, '\n')), 0o644)
}

// remove removes a file, and the draft of a process that was killed. Both may be gone.
func remove(path string) error {
	for _, file := range []string{path, path + draftSuffix} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// lock takes a lock of the root, waiting until ctx ends.
func (r root) lock(ctx context.Context, name string, mode lock.Mode) (release func(), err error) {
	file, err := os.OpenFile(filepath.Join(string(r), name), os.O_RDONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the MPS directory: %w", err)
	}
	if err := lock.File(ctx, file, mode); err != nil {
		_ = file.Close() // the other error counts
		return nil, fmt.Errorf("lock the MPS directory: %w", err)
	}
	return func() { _ = file.Close() }, nil // closing gives up the lock
}

// tryLock does not wait. A root that does not exist counts as locked: it has no supervisor.
func (r root) tryLock(name string, mode lock.Mode) (release func(), held bool, err error) {
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	switch release, err = r.lock(ended, name, mode); {
	case errors.Is(err, fs.ErrNotExist):
		return func() {}, true, nil
	case errors.Is(err, context.Canceled):
		return nil, false, nil
	}
	return release, err == nil, err
}
