package lock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Locker holds locks by key. Within the process a key is a channel, which is
// fair and costs nothing to wait on; between processes it is a flock of a file
// of that name. All Lockers on one directory exclude each other.
type Locker struct {
	dir   string
	local local
}

const suffix = ".lock"

// Open returns a Locker on dir, which is created with mode 0700 when missing.
// Lock files left by processes that died are removed.
func Open(dir string) (*Locker, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the lock directory %s cannot be made: %w; mount a writable directory there", dir, err)
	}
	l := &Locker{dir: dir, local: local{gates: map[string]*gate{}}}
	if err := l.sweep(); err != nil {
		return nil, err
	}
	return l, nil
}

// Lock takes the locks of all keys and returns the function that gives them up,
// which may be called more than once. Keys are taken in sorted order, whatever
// order they are given in, so that two callers with overlapping keys cannot
// deadlock; a caller must therefore take all it needs in one call. Either all
// locks are held on return or none is.
//
// A key is a file name: letters, digits, '-', '_' and '.', not starting with '.'.
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
	if !validKey(key) {
		return nil, fmt.Errorf("%q is not a lock key: only letters, digits, '-', '_' and '.' are allowed, and no '.' at the start", key)
	}
	if err := l.local.take(ctx, key); err != nil {
		return nil, fmt.Errorf("gave up waiting for the lock %q: another call of this process still works on it: %w", key, err)
	}
	file, err := l.acquire(ctx, key)
	if err != nil {
		l.local.give(key)
		if cause := context.Cause(ctx); cause != nil && errors.Is(err, cause) {
			return nil, fmt.Errorf("gave up waiting for the lock %q: another plugin process holds %s; it goes when that process finishes or ends: %w",
				key, l.path(key), err)
		}
		return nil, fmt.Errorf("the lock %q cannot be taken: %w", key, err)
	}
	return func() {
		l.release(file, key)
		l.local.give(key)
	}, nil
}

// acquire returns the locked file of key. The file's holder removes it before it
// lets go, so a lock that was waited for may be that of a file which is no
// longer at its path and excludes nobody: only a lock on the file that the path
// names counts.
func (l *Locker) acquire(ctx context.Context, key string) (*os.File, error) {
	for {
		file, err := os.OpenFile(l.path(key), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := File(ctx, file, Exclusive); err != nil {
			file.Close()
			return nil, err
		}
		current, err := isCurrent(file)
		if err == nil && current {
			return file, nil
		}
		file.Close()
		if err != nil {
			return nil, err
		}
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// release removes the file first, so that lock files of claims long gone do not
// pile up; see acquire for why this is safe. When the removal fails, the file
// stays and works as well as before.
func (l *Locker) release(file *os.File, key string) {
	_ = os.Remove(l.path(key))
	_ = Unlock(file)
	_ = file.Close()
}

// sweep removes the lock files that nobody holds.
func (l *Locker) sweep() error {
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return fmt.Errorf("the lock directory %s cannot be read: %w", l.dir, err)
	}
	for _, entry := range entries {
		key, isLock := strings.CutSuffix(entry.Name(), suffix)
		if !isLock || !validKey(key) || !entry.Type().IsRegular() {
			continue
		}
		file, err := os.OpenFile(l.path(key), os.O_RDWR, 0)
		if err != nil {
			continue
		}
		if held, err := tryFile(file, Exclusive); err == nil && held {
			if current, err := isCurrent(file); err == nil && current {
				l.release(file, key)
				continue
			}
		}
		file.Close()
	}
	return nil
}

func (l *Locker) path(key string) string { return filepath.Join(l.dir, key+suffix) }

// isCurrent reports whether the path that f was opened at still names f.
func isCurrent(f *os.File) (bool, error) {
	opened, err := f.Stat()
	if err != nil {
		return false, err
	}
	named, err := os.Lstat(f.Name())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return os.SameFile(opened, named), nil
}

func validKey(key string) bool {
	if key == "" || len(key) > 200 || key[0] == '.' {
		return false
	}
	for _, c := range []byte(key) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}
