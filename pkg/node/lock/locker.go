package lock

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// Locker holds locks by key. Within the process, a key is a channel, which is fair and costs
// nothing to wait on. Between processes, it is a byte of a file that exists from the start, so
// a lock can be taken on a full disk. All Lockers on one directory exclude each other.
type Locker struct {
	path  string
	local local

	mu   sync.Mutex
	file *os.File
}

const fileName = "keys.lock"

// Open returns a Locker on dir, which is created with mode 0700 when missing.
func Open(dir string) (*Locker, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the lock directory %s cannot be made: %w; mount a writable directory there", dir, err)
	}
	l := &Locker{path: filepath.Join(dir, fileName), local: local{gates: map[string]*gate{}}}
	if _, err := l.current(); err != nil {
		return nil, fmt.Errorf("the lock file cannot be made: %w; mount a writable directory there", err)
	}
	return l, nil
}

// Lock takes the locks of all keys and returns the function that gives them up,
// which may be called more than once. Keys are taken in sorted order, whatever
// order they are given in, so that two callers with overlapping keys cannot
// deadlock; a caller must therefore take all it needs in one call. Either all
// locks are held on return or none is.
func (l *Locker) Lock(ctx context.Context, keys ...string) (unlock func(), err error) {
	sorted := slices.Clone(keys)
	slices.Sort(sorted)
	sorted = slices.Compact(sorted)

	var held []func()
	release := func() {
		for _, undo := range slices.Backward(held) {
			undo()
		}
	}
	for _, key := range sorted {
		undo, err := l.lockOne(ctx, key)
		if err != nil {
			release()
			return nil, err
		}
		held = append(held, undo)
	}
	return sync.OnceFunc(release), nil
}

func (l *Locker) lockOne(ctx context.Context, key string) (func(), error) {
	if err := l.local.take(ctx, key); err != nil {
		return nil, fmt.Errorf("gave up waiting for the lock %q: another call of this process still works on it: %w", key, err)
	}
	file, err := l.acquire(ctx, key)
	if err != nil {
		l.local.give(key)
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
			return nil, fmt.Errorf("gave up waiting for the lock %q: another plugin process holds it in %s; it goes when that process finishes or ends: %w",
				key, l.path, err)
		}
		return nil, fmt.Errorf("the lock %q cannot be taken: %w", key, err)
	}
	return func() {
		_ = setRange(file, key, unix.F_UNLCK) // of what is held, and the kernel gives it up with the process
		l.local.give(key)
	}, nil
}

// acquire returns the file in which it has locked key. The file may have been removed
// meanwhile: only a lock in the file that the path names excludes others.
func (l *Locker) acquire(ctx context.Context, key string) (*os.File, error) {
	for {
		file, err := l.current()
		if err != nil {
			return nil, err
		}
		err = wait(ctx, func() error { return setRange(file, key, unix.F_WRLCK) })
		if err != nil {
			return nil, err
		}
		now, err := l.current()
		if err == nil && now == file {
			return file, nil
		}
		_ = setRange(file, key, unix.F_UNLCK)
		if err != nil {
			return nil, err
		}
	}
}

// current is the file that the path names. The garbage collector closes an earlier one after
// the last lock in it.
func (l *Locker) current() (*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file != nil {
		opened, err := l.file.Stat()
		if err != nil {
			return nil, err
		}
		named, err := os.Lstat(l.path)
		if err == nil && os.SameFile(opened, named) {
			return l.file, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	file, err := os.OpenFile(l.path, os.O_CREATE|os.O_RDWR, 0o600)
	if err == nil {
		l.file = file
	}
	return file, err
}

// setRange locks or unlocks the byte of a key. Two keys of 2^62 that share one exclude each
// other, too.
//
// The lock belongs to the open file description (F_OFD_SETLK of fcntl(2)), and the kernel
// drops it when the last process that has the description dies, however it dies.
func setRange(file *os.File, key string, how int16) error {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key)) // never fails
	byteOfKey := unix.Flock_t{Type: how, Whence: unix.SEEK_SET, Start: int64(hash.Sum64() >> 2), Len: 1}
	return control(file, "lock", func(fd uintptr) error { return unix.FcntlFlock(fd, unix.F_OFD_SETLK, &byteOfKey) })
}
