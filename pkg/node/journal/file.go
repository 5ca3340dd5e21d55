package journal

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"
)

// listed is what one file was found to be: a record, or corrupt.
type listed struct {
	identity identity
	record   Record
	corrupt  *Corrupt
	// data is what the record was decoded from.
	data []byte
}

// identity tells whether a file is the one that was read before, without reading
// it. Change time is in it because a rename sets it, modification time because an
// editor does.
type identity struct {
	inode            uint64
	size             int64
	modified, change time.Time
	// settled is false when the file was read so soon after its change that a
	// second change could have left the same times, and, with an inode that is
	// used again, the same identity. Such a file is read again.
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

// entry returns what the file of that name is, from memory if it has not changed.
// known is true for what was listed before.
func (j *Journal) entry(name string) (entry listed, known bool, err error) {
	before, seen := j.listed[name]
	if seen {
		info, err := os.Lstat(j.path(name))
		if err != nil {
			return listed{}, false, err
		}
		unchanged := before.identity.same(identify(info, time.Time{}))
		if unchanged && (before.identity.settled || before.corrupt != nil) {
			return before, true, nil
		}
	}
	entry, err = j.read(name, before)
	return entry, false, err
}

// read reads a file. What it was before spares decoding the same again.
func (j *Journal) read(name string, before listed) (listed, error) {
	found, bad, err := j.load(name, before)
	if err != nil || bad == nil {
		return found, err
	}
	found.corrupt = &Corrupt{Path: j.path(name), Detail: bad.detail, Newer: bad.newer}
	if uid := strings.TrimSuffix(name, extension); validUID(uid) {
		found.corrupt.ClaimUID = uid
		if bad.newer {
			found.corrupt.Record = newerRecord(uid, found.data)
		}
	}
	return found, nil
}

// load reads and decodes a file. The identity is that of
// the file whose bytes were decoded.
func (j *Journal) load(name string, before listed) (listed, *fault, error) {
	path := j.path(name)
	// Not O_NONBLOCK alone: to open a device can have effects.
	info, err := os.Lstat(path)
	if err != nil {
		return listed{}, nil, err
	}
	if !info.Mode().IsRegular() {
		return listed{identity: identify(info, time.Now())}, faultf("is not a regular file"), nil
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return listed{}, nil, err
	}
	defer file.Close()
	if info, err = file.Stat(); err != nil {
		return listed{}, nil, err
	}
	found := listed{identity: identify(info, time.Now())}
	data, err := io.ReadAll(io.LimitReader(file, maxFileSize+1))
	if errors.Is(err, syscall.EIO) {
		return found, faultf("cannot be read from the disk: %w", err), nil
	}
	if err != nil {
		return listed{}, nil, err
	}
	found.data = data
	if before.corrupt == nil && len(data) > 0 && bytes.Equal(data, before.data) {
		found.record = before.record
		return found, nil, nil
	}
	record, bad := decode(name, data)
	found.record = record
	return found, bad, nil
}
