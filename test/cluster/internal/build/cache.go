package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache builds binaries once and keeps them. Any number of processes may use
// one at the same time.
type Cache struct {
	// Source is the directory test/cluster of a checkout.
	Source string
	// Root is the directory that holds one directory a group and key.
	Root string
	// Progress receives a line a binary, and the go command's messages.
	Progress io.Writer

	toolchain string
}

// DefaultRoot is $MICA_CACHE, else mica in the user's cache directory.
func DefaultRoot() (string, error) {
	if dir := os.Getenv("MICA_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory: %w: set MICA_CACHE", err)
	}
	return filepath.Join(dir, "mica"), nil
}

// Binary returns the path of a binary, which is built first when the cache
// does not hold it.
func (c *Cache) Binary(ctx context.Context, name string) (string, error) {
	group, err := Find(Groups(), name)
	if err != nil {
		return "", err
	}
	dir, err := c.Group(ctx, group, name)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// Group returns the directory that holds a group's binaries, and builds those
// of names that are missing; without names, all of the group.
func (c *Cache) Group(ctx context.Context, group Group, names ...string) (string, error) {
	recipe, err := c.recipe(ctx, group)
	if err != nil {
		return "", err
	}
	key, err := recipe.key(group, c.Source)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(c.Root, key, "bin")
	if len(names) == 0 {
		names = group.Names()
	}
	for _, name := range names {
		if err := c.ensure(ctx, group, recipe, dir, name); err != nil {
			return "", err
		}
	}
	return dir, nil
}

func (c *Cache) recipe(ctx context.Context, group Group) (recipe, error) {
	if c.toolchain == "" {
		cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH")
		cmd.Dir = c.Source
		out, err := cmd.Output()
		if err != nil {
			return recipe{}, fmt.Errorf("asking the go command for its version: %w: install Go from https://go.dev/dl and put it on PATH", err)
		}
		c.toolchain = strings.Join(strings.Fields(string(out)), " ")
	}
	return newRecipe(group, c.Source, c.toolchain)
}

// ensure builds one binary if it is not there. A lock file next to it keeps
// two processes from building the same one; the rename makes it appear whole.
func (c *Cache) ensure(ctx context.Context, group Group, recipe recipe, dir, name string) error {
	path := filepath.Join(dir, name)
	if present(path) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making the cache directory of %s: %w: set MICA_CACHE to a directory that can be written", group.Name, err)
	}
	unlock, err := lock(ctx, filepath.Join(filepath.Dir(dir), "."+name+".lock"), func() {
		fmt.Fprintf(c.Progress, "another process is building %s: waiting for it\n", name)
	})
	if err != nil {
		return fmt.Errorf("waiting for another build of %s: %w", name, err)
	}
	defer unlock()
	if present(path) {
		return nil
	}
	start := time.Now()
	fmt.Fprintf(c.Progress, "building %s %s\n", name, recipe.version)
	partial := filepath.Join(dir, fmt.Sprintf(".%s.%d", name, os.Getpid()))
	defer os.Remove(partial)
	modfile, remove, err := c.patch(ctx, group)
	if err != nil {
		return fmt.Errorf("building %s: %w", name, err)
	}
	defer remove()
	cmd := exec.CommandContext(ctx, "go", recipe.args(group.Packages[name], partial, modfile)...)
	cmd.Dir = group.Dir(c.Source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED="+recipe.cgo, "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = c.Progress, c.Progress
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s from %s: %w", name, cmd.Dir, err)
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("putting %s into the cache: %w", name, err)
	}
	fmt.Fprintf(c.Progress, "built %s in %s: %s\n", name, time.Since(start).Round(time.Second), path)
	return nil
}

func present(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// lockInterval is how often a lock is tried that another process holds.
const lockInterval = 100 * time.Millisecond

// lock waits for the lock file at path, calls waits when that takes time, and
// returns what releases it.
func lock(ctx context.Context, path string, waits func()) (func(), error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	retry := time.NewTicker(lockInterval)
	defer retry.Stop()
	for first := true; ; first = false {
		// A wait in the kernel could not be interrupted.
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return func() { file.Close() }, nil
		case !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR):
			return nil, errors.Join(err, file.Close())
		case first:
			waits()
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), file.Close())
		case <-retry.C:
		}
	}
}
