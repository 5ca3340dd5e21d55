package build

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cache builds binaries once and keeps them. Any number of processes may use
// one at the same time.
type Cache struct {
	// Source is the directory test/cluster of a checkout.
	Source string
	// Root is the directory that holds one directory per group and key.
	Root string
	// Progress receives the go command's messages.
	Progress io.Writer
	// Started is called once per Build with the number of binaries to build and
	// the number in the cache. It may be nil.
	Started func(missing, present int)
	// Built is called for each binary that has been built. It may be nil.
	Built func(name string)

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
	paths, err := c.Build(ctx, Groups(), name)
	return paths[name], err
}

// Build returns the paths of binaries by name, after building those that the
// cache does not hold. Binaries of one module are built by one go command, which
// compiles what they share once and keeps every processor busy.
func (c *Cache) Build(ctx context.Context, groups []Group, names ...string) (map[string]string, error) {
	targets, err := c.targets(ctx, groups, names)
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for _, t := range targets {
		paths[t.name] = t.path
	}
	if err := c.make(ctx, targets); err != nil {
		return nil, err
	}
	return paths, nil
}

// target is one binary that is wanted.
type target struct {
	name   string
	group  Group
	recipe recipe
	// path is where the cache has it.
	path string
}

func (c *Cache) targets(ctx context.Context, groups []Group, names []string) ([]target, error) {
	var targets []target
	for _, name := range names {
		group, err := Find(groups, name)
		if err != nil {
			return nil, err
		}
		recipe, err := c.recipe(ctx, group)
		if err != nil {
			return nil, err
		}
		key, err := recipe.key(group, c.Source)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target{name, group, recipe, filepath.Join(c.Root, key, "bin", name)})
	}
	return targets, nil
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

// make builds what is missing. One process does so at a time: two would compile
// the same packages.
func (c *Cache) make(ctx context.Context, targets []target) error {
	present := func(t target) bool { return present(t.path) }
	if !slices.ContainsFunc(targets, func(t target) bool { return !present(t) }) {
		c.started(0, len(targets))
		return nil
	}
	if err := os.MkdirAll(c.Root, 0o755); err != nil {
		return fmt.Errorf("making the cache directory: %w: set MICA_CACHE to a directory that can be written", err)
	}
	unlock, err := lock(ctx, filepath.Join(c.Root, ".lock"), func() {
		fmt.Fprintf(c.Progress, "another process builds into %s: waiting for it\n", c.Root)
	})
	if err != nil {
		return fmt.Errorf("waiting for another build: %w", err)
	}
	defer unlock()
	missing := slices.DeleteFunc(slices.Clone(targets), present)
	c.started(len(missing), len(targets)-len(missing))
	for len(missing) > 0 {
		together, others := split(missing)
		if err := c.buildTogether(ctx, together); err != nil {
			return err
		}
		missing = others
	}
	return nil
}

func (c *Cache) started(missing, present int) {
	if c.Started != nil {
		c.Started(missing, present)
	}
}

// split parts those that one go command can build together with the first one
// from the others.
func split(targets []target) (together, others []target) {
	first := targets[0]
	for _, t := range targets {
		if t.name == first.name || t.group.Dir("") == first.group.Dir("") && t.recipe.cgo == first.recipe.cgo &&
			len(t.group.Replace)+len(first.group.Replace) == 0 {
			together = append(together, t)
		} else {
			others = append(others, t)
		}
	}
	return together, others
}

// buildTogether builds binaries of one module with one go command. They are put
// beside the cache first, so that a rename makes each appear whole.
func (c *Cache) buildTogether(ctx context.Context, targets []target) error {
	group := targets[0].group
	stage, err := os.MkdirTemp(c.Root, ".stage-")
	if err != nil {
		return fmt.Errorf("making a directory in the cache: %w", err)
	}
	defer os.RemoveAll(stage)
	modfile, remove, err := c.patch(ctx, group)
	if err != nil {
		return fmt.Errorf("building %s: %w", group.Name, err)
	}
	defer remove()
	cmd := exec.CommandContext(ctx, "go", args(targets, stage, modfile)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Dir = group.Dir(c.Source)
	// Collecting garbage takes a third of a compiler's time. Below the limit there is none.
	cmd.Env = append([]string{"GOGC=off", "GOMEMLIMIT=2GiB"}, os.Environ()...)
	cmd.Env = append(cmd.Env, "CGO_ENABLED="+targets[0].recipe.cgo, "GOFLAGS=", "GOWORK=off")
	cmd.Stdout, cmd.Stderr = c.Progress, c.Progress
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("building %s from %s: %w", strings.Join(names(targets), ", "), cmd.Dir, err)
	}
	for _, t := range targets {
		if err := os.MkdirAll(filepath.Dir(t.path), 0o755); err != nil {
			return fmt.Errorf("making the cache directory of %s: %w", t.name, err)
		}
		if err := os.Rename(filepath.Join(stage, t.executable()), t.path); err != nil {
			return fmt.Errorf("putting %s into the cache: %w", t.name, err)
		}
		if c.Built != nil {
			c.Built(t.name)
		}
	}
	return nil
}

// args are the arguments of the go command that builds the targets into the
// directory out, with another go.mod than the module's own when modfile names one.
func args(targets []target, out, modfile string) []string {
	args := []string{"build", "-v", "-mod=readonly", "-trimpath", "-buildvcs=false", "-pgo=off", "-o", out + "/"}
	if modfile != "" {
		args = append(args, "-modfile", modfile)
	}
	tags := slices.Clone(Tags)
	var packages []string
	for _, t := range targets {
		for _, tag := range t.recipe.tags {
			if !slices.Contains(tags, tag) {
				tags = append(tags, tag)
			}
		}
		pkg := t.group.Packages[t.name]
		packages = append(packages, pkg)
		args = append(args, "-ldflags", pkg+"="+t.recipe.ldflags)
	}
	return append(append(args, "-tags", strings.Join(tags, ",")), packages...)
}

// major is the end of an import path that is a major version.
var major = regexp.MustCompile(`/v[0-9]+$`)

// executable is the name that the go command gives the binary.
func (t target) executable() string {
	return path.Base(major.ReplaceAllString(t.group.Packages[t.name], ""))
}

func names(targets []target) []string {
	var names []string
	for _, t := range targets {
		names = append(names, t.name)
	}
	return names
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
