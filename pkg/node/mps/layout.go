package mps

import (
	"bytes"
	"crypto/rand"
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
)

const (
	wishesDir   = "daemons"
	statusesDir = "status"
	shmDir      = "shm"
	lockFile    = "supervisor.lock" // held by the only supervisor
	servingFile = "serving.lock"    // held by it since the statuses are true
	linksDir    = "libraries"

	fileSuffix = ".json"
	tempSuffix = ".tmp"
	// maxFile bounds what is read of a file; a daemon of 16 GPUs has 2 KiB.
	maxFile = 64 << 10

	// maxSocketPath is what fits sun_path of sockaddr_un with its final NUL (unix(7)),
	// longestSocket more than the names that MPS gives to sockets.
	maxSocketPath, longestSocket = 107, len("/nvidia-cuda-mps-server.4194304")
)

// reserved are the names in the root that no daemon can have.
var reserved = []string{wishesDir, statusesDir, shmDir, lockFile, servingFile, linksDir}

// root is the directory that the processes of one node share. Every path in it is
// the same for the host, the plugin and the supervisor.
type root string

func (r root) wishes() string          { return filepath.Join(string(r), wishesDir) }
func (r root) statuses() string        { return filepath.Join(string(r), statusesDir) }
func (r root) wish(id string) string   { return filepath.Join(r.wishes(), id+fileSuffix) }
func (r root) status(id string) string { return filepath.Join(r.statuses(), id+fileSuffix) }
func (r root) lock() string            { return filepath.Join(string(r), lockFile) }
func (r root) serving() string         { return filepath.Join(string(r), servingFile) }
func (r root) shm() string             { return filepath.Join(string(r), shmDir) }
func (r root) place(id string) Place   { return Place(filepath.Join(string(r), id)) }

// ids lists the daemons that have a file in a directory of the root.
func ids(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
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

// Place is the directory of one daemon.
type Place string

// Pipe is where its clients find it.
func (p Place) Pipe() string { return filepath.Join(string(p), "pipe") }

// shm is what the servers and clients of all daemons have as /dev/shm.
func (p Place) shm() string { return root(filepath.Dir(string(p))).shm() }

// Log is where it writes what it does.
func (p Place) Log() string { return filepath.Join(string(p), "log") }

// errDamaged: what the file says cannot be told. What a newer version asks for in
// a field of its own must not be left out.
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

// read decodes a regular file of a bounded size. Strict refuses fields that this
// version does not know. A missing file is fs.ErrNotExist.
func read(path string, into any, strict bool) error {
	file, _, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	content, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return err
	}
	if len(content) > maxFile {
		return fmt.Errorf("%w: %s has more than %d bytes", errDamaged, path, maxFile)
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

// write replaces a file of the root.
func write(path string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	draft := filepath.Join(filepath.Dir(path), draftPrefix(path)+rand.Text()+tempSuffix)
	return atomicfile.Write(path, draft, bytes.NewReader(append(content, '\n')), 0o644)
}

// draftPrefix begins the names of what is to become the file.
func draftPrefix(path string) string { return "." + filepath.Base(path) + "-" }

// removeDrafts removes what a process that was killed while it wrote files has left in
// a directory: of those files whose drafts have a prefix.
func removeDrafts(dir, prefix string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, prefix) && strings.HasSuffix(name, tempSuffix) {
			if err := remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove is not surprised by a file that is gone.
func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
