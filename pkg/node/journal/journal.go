package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
)

// Journal is a directory of records. Its methods may be called from any goroutine; see the
// package comment for which process may write which claim.
type Journal struct {
	dir string

	listMu sync.Mutex
	listed map[string]entry // by file name, as List has decoded it
}

const tempPrefix = ".put-"

// deadAfter is the age of a temporary file whose writer has died: a writer needs it for less
// than a millisecond.
const deadAfter = time.Minute

// Open returns the journal in dir, which it creates with mode 0700 if it is missing. It
// removes the files of writers that died during a Put.
func Open(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the journal directory %s cannot be made: %w; mount a writable directory there", dir, err)
	}
	j := &Journal{dir: dir}
	if err := j.checkWritable(); err != nil {
		return nil, fmt.Errorf("the journal directory %s cannot be written: %w; mount a writable directory there", dir, err)
	}
	if err := j.sweep(); err != nil {
		return nil, fmt.Errorf("the leftovers in the journal directory %s cannot be removed: %w", dir, err)
	}
	return j, nil
}

// Read lists the journal in dir without changing it.
func Read(dir string) ([]Record, []*Corrupt, error) {
	return (&Journal{dir: dir}).List()
}

// Get reads the record of a claim from disk. It reports false if there is none. The error of
// a file that cannot be used is a *Corrupt. Callers report it and go on as without a record:
// Put replaces the file, and Delete removes it. A Newer one has to stay.
func (j *Journal) Get(uid string) (Record, bool, error) {
	if !validUID(uid) {
		return Record{}, false, fmt.Errorf("%q is not the UID of a claim", uid)
	}
	found, err := j.read(uid + extension)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Record{}, false, nil
	case err != nil:
		return Record{}, false, fmt.Errorf("its record in the journal cannot be read: %w", err)
	case found.corrupt != nil:
		return Record{}, false, found.corrupt
	}
	return found.record, true, nil
}

// Put writes the record of a claim in place of the one before. If it returns nil, the record
// survives the death of this process; if not, the one before is untouched. It does not sync:
// after a loss of power the boot ID shows that nothing in a record is alive, and a file
// that lost its content counts as damaged.
func (j *Journal) Put(ctx context.Context, r Record) error {
	data, err := Encode(r)
	if err != nil {
		return fmt.Errorf("its record cannot be written to the journal: %w", err)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else {
		err = atomicfile.Write(j.path(r.ClaimUID+extension), j.path(tempPrefix+r.ClaimUID+"-"+rand.Text()), bytes.NewReader(data), 0o600)
	}
	if err != nil {
		return fmt.Errorf("its record could not be written to the journal %s: %w", j.dir, err)
	}
	return nil
}

// Delete removes the record of a claim, if there is one.
func (j *Journal) Delete(uid string) error {
	if !validUID(uid) {
		return fmt.Errorf("%q is not the UID of a claim", uid)
	}
	if err := os.Remove(j.path(uid + extension)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("its record could not be removed from the journal: %w", err)
	}
	return nil
}

// List returns all records, sorted by UID, and the files that cannot be used, as they are on
// disk. It does not read unchanged files again, so later lists share the devices of a record:
// change only those of a Clone.
func (j *Journal) List() ([]Record, []*Corrupt, error) {
	files, err := j.fileNames()
	if err != nil {
		return nil, nil, fmt.Errorf("the journal directory %s cannot be read: %w", j.dir, err)
	}
	j.listMu.Lock()
	defer j.listMu.Unlock()
	records := make([]Record, 0, len(files))
	var corrupt []*Corrupt
	current := make(map[string]entry, len(files))
	for _, name := range files {
		found, known := j.unchanged(name)
		if !known {
			if found, err = j.read(name); errors.Is(err, fs.ErrNotExist) {
				continue // deleted since the directory was read
			}
			if err != nil {
				return nil, nil, fmt.Errorf("the journal file %s cannot be read: %w", j.path(name), err)
			}
		}
		if found.corrupt == nil {
			records = append(records, found.record)
		} else {
			reported := *found.corrupt
			reported.Known = known
			corrupt = append(corrupt, &reported)
		}
		current[name] = found
	}
	j.listed = current
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.ClaimUID, b.ClaimUID) })
	return records, corrupt, nil
}

// Tally counts the records of one state.
type Tally struct {
	Records int
	// Bytes is the size of their files.
	Bytes int64
	// Oldest is the oldest time of their last writes.
	Oldest time.Time
}

// Tallies counts what List has found last, by state. What cannot be used is Damaged.
func (j *Journal) Tallies() map[State]Tally {
	j.listMu.Lock()
	defer j.listMu.Unlock()
	tallies := map[State]Tally{}
	for _, found := range j.listed {
		state := found.record.State
		if found.corrupt != nil {
			state = Damaged
		}
		tally := tallies[state]
		if tally.Records == 0 || found.identity.modified.Before(tally.Oldest) {
			tally.Oldest = found.identity.modified
		}
		tally.Records++
		tally.Bytes += found.identity.size
		tallies[state] = tally
	}
	return tallies
}

// entry is the content of one file: a record, or corrupt.
type entry struct {
	identity identity
	record   Record
	corrupt  *Corrupt
}

// identity identifies the content of a file without reading it. A rename sets the change
// time, and an editor the modification time.
type identity struct {
	inode            uint64
	size             int64
	modified, change time.Time
	// settled is false if the file was read so soon after its change that a second change
	// could have left the same times and inode. Such a file is read again.
	settled bool
}

// settleTime is well above the tick of the clock that file systems stamp with.
const settleTime = 100 * time.Millisecond

func identify(info fs.FileInfo, now time.Time) identity {
	id := identity{size: info.Size(), modified: info.ModTime()}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		id.inode = stat.Ino
		id.change = time.Unix(stat.Ctim.Unix())
		id.settled = now.Sub(id.change) > settleTime
	}
	return id
}

func (id identity) same(other identity) bool {
	return id.inode == other.inode && id.size == other.size &&
		id.modified.Equal(other.modified) && id.change.Equal(other.change)
}

// unchanged returns what the file was at the last list, if it has not changed since.
func (j *Journal) unchanged(name string) (found entry, unchanged bool) {
	before, listed := j.listed[name]
	if !listed || !before.identity.settled && before.corrupt == nil {
		return entry{}, false
	}
	info, err := os.Lstat(j.path(name))
	return before, err == nil && before.identity.same(identify(info, time.Time{}))
}

// read reads and decodes a file. The identity is that of the file whose bytes were decoded.
func (j *Journal) read(name string) (entry, error) {
	info, data, err := j.content(name)
	if err != nil && info == nil {
		return entry{}, err
	}
	uid, isRecord := strings.CutSuffix(name, extension)
	if !isRecord || !validUID(uid) {
		uid = ""
	}
	found := entry{identity: identify(info, time.Now())}
	if err == nil {
		found.record, err = Decode(uid, data)
	} else {
		err = corruptf(uid, "%w", err)
	}
	if errors.As(err, &found.corrupt) {
		found.corrupt.Path = j.path(name)
	}
	return found, nil
}

// content returns an error with the file's info if the file itself is at fault.
func (j *Journal) content(name string) (fs.FileInfo, []byte, error) {
	path := j.path(name)
	// Not O_NONBLOCK alone: opening a device can have effects.
	info, err := os.Lstat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return info, nil, errors.New("is not a regular file")
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if errors.Is(err, syscall.EIO) {
		return info, nil, fmt.Errorf("cannot be read from the disk: %w", err)
	}
	if err != nil {
		return nil, nil, err
	}
	return info, data, nil
}

// fileNames are the files that are or claim to be records.
func (j *Journal) fileNames() ([]string, error) {
	dir, err := os.Open(j.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	all, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(name string) bool {
		return !strings.HasSuffix(name, extension) || strings.HasPrefix(name, tempPrefix)
	}), nil
}

// checkWritable finds a read-only mount at start rather than at the first claim. A full disk
// passes: released claims make space.
func (j *Journal) checkWritable() error {
	probe, err := os.CreateTemp(j.dir, tempPrefix+"probe-*")
	if atomicfile.IsFull(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// Another plugin that starts at the same time may have swept it away.
	if err := os.Remove(probe.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(err, probe.Close())
	}
	return probe.Close()
}

// sweep removes temporary files that died with their writers.
func (j *Journal) sweep() error {
	leftovers, err := filepath.Glob(filepath.Join(j.dir, tempPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range leftovers {
		info, err := os.Lstat(path)
		if err == nil && time.Since(info.ModTime()) > deadAfter {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func (j *Journal) path(name string) string { return filepath.Join(j.dir, name) }
