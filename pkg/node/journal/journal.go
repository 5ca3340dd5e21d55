package journal

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
)

// Journal is a directory of records. All methods may be called at any time from
// any goroutine; see the package comment for who may write which claim.
type Journal struct {
	dir string

	listMu sync.Mutex
	listed map[string]listed // by file name; what List has decoded
}

const tempPrefix = ".put-"

// deadAfter is how old a temporary file is whose writer has died: a writer needs it for
// less than a millisecond.
const deadAfter = time.Minute

// Open returns the journal in dir, which is created with mode 0700 when missing.
// It removes the files of writers that died in the middle of a Put.
func Open(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the journal directory %s cannot be made: %w; mount a writable directory there", dir, err)
	}
	j := &Journal{dir: dir, listed: map[string]listed{}}
	if err := j.checkWritable(); err != nil {
		return nil, fmt.Errorf("the journal directory %s cannot be written: %w; mount a writable directory there", dir, err)
	}
	if err := j.sweep(); err != nil {
		return nil, fmt.Errorf("the leftovers in the journal directory %s cannot be removed: %w", dir, err)
	}
	return j, nil
}

// Read is List of the journal in dir for who only looks: it makes and removes nothing.
func Read(dir string) ([]Record, []*Corrupt, error) {
	j := &Journal{dir: dir, listed: map[string]listed{}}
	return j.List()
}

// Get reads the record of a claim from disk. It reports false when there is none. Of a
// file that cannot be used, the error is a *Corrupt, which callers report and otherwise
// treat as no record: Put replaces the file, and Delete removes it. A Newer one has to
// stay: its claim is none of theirs.
func (j *Journal) Get(uid string) (Record, bool, error) {
	if !validUID(uid) {
		return Record{}, false, fmt.Errorf("%q is not the UID of a claim", uid)
	}
	found, err := j.read(uid+extension, listed{})
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Record{}, false, nil
	case err != nil:
		return Record{}, false, fmt.Errorf("the journal's record of claim %s cannot be read: %w", uid, err)
	case found.corrupt != nil:
		return Record{}, false, found.corrupt
	}
	return found.record, true, nil
}

// Put writes the record of a claim in place of the one before, if any. When it
// returns nil, the record survives the death of this process; when it does not,
// the one before is untouched.
func (j *Journal) Put(ctx context.Context, r Record) error {
	data, err := encode(r)
	if err != nil {
		return fmt.Errorf("the record of claim %s/%s (%s) cannot be written to the journal: %w", r.Namespace, r.Name, r.ClaimUID, err)
	}
	if err := j.put(ctx, r.ClaimUID, data); err != nil {
		return fmt.Errorf("the record of claim %s/%s (%s) could not be written to the journal %s: %w",
			r.Namespace, r.Name, r.ClaimUID, j.dir, err)
	}
	return nil
}

// put replaces a file without a sync. After a loss of power the boot ID tells that
// nothing which a record speaks of is alive any more, and a file that lost its
// content is one of the damaged ones.
func (j *Journal) put(ctx context.Context, uid string, data []byte) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return atomicfile.Write(j.path(uid+extension), j.path(tempPrefix+uid+"-"+rand.Text()), bytes.NewReader(data), 0o600)
}

// Delete removes the record of a claim. To remove what is not there is no error.
func (j *Journal) Delete(uid string) error {
	if !validUID(uid) {
		return fmt.Errorf("%q is not the UID of a claim", uid)
	}
	if err := os.Remove(j.path(uid + extension)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the journal's record of claim %s could not be removed: %w", uid, err)
	}
	return nil
}

// List returns all records, sorted by UID, as the disk has them: what another
// process wrote is seen, and the files that cannot be used. Files that have not changed
// are not read again, so the devices of a record are shared with later lists: change those
// of a Clone.
func (j *Journal) List() ([]Record, []*Corrupt, error) {
	files, err := j.fileNames()
	if err != nil {
		return nil, nil, fmt.Errorf("the journal directory %s cannot be read: %w", j.dir, err)
	}
	j.listMu.Lock()
	defer j.listMu.Unlock()
	records := make([]Record, 0, len(files))
	var corrupt []*Corrupt
	current := make(map[string]listed, len(files))
	for _, name := range files {
		entry, known, err := j.entry(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted since the directory was read
		}
		if err != nil {
			return nil, nil, fmt.Errorf("the journal file %s cannot be read: %w", j.path(name), err)
		}
		if entry.corrupt == nil {
			records = append(records, entry.record)
		} else {
			told := *entry.corrupt
			told.Known = known
			corrupt = append(corrupt, &told)
		}
		current[name] = entry
	}
	j.listed = current
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(a.ClaimUID, b.ClaimUID) })
	return records, corrupt, nil
}

// Tally is what there is of one state.
type Tally struct {
	Records int
	// Bytes are those of their files.
	Bytes int64
	// Oldest is when the one was written that was not written for the longest time.
	Oldest time.Time
}

// Tallies are those of what List found last, by state. What cannot be used is Damaged.
func (j *Journal) Tallies() map[State]Tally {
	j.listMu.Lock()
	defer j.listMu.Unlock()
	tallies := map[State]Tally{}
	for _, entry := range j.listed {
		state := entry.record.State
		if entry.corrupt != nil {
			state = Damaged
		}
		tally := tallies[state]
		if tally.Records == 0 || entry.identity.modified.Before(tally.Oldest) {
			tally.Oldest = entry.identity.modified
		}
		tally.Records++
		tally.Bytes += entry.identity.size
		tallies[state] = tally
	}
	return tallies
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

// checkWritable finds a read-only mount at start rather than at the first claim. A full disk passes: claims that
// are released make space.
func (j *Journal) checkWritable() error {
	probe, err := os.CreateTemp(j.dir, tempPrefix+"probe-*")
	if atomicfile.IsFull(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// A plugin that starts at the same time may have swept it away already.
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
