package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/atomicfile"
)

const (
	bundledHook = "/usr/bin/nvidia-cdi-hook"
	hookName    = "nvidia-cdi-hook"
	hookMode    = 0o755
)

// hookInstaller installs the hook once, although the plugin may open the driver many times. It is
// not safe for concurrent use.
type hookInstaller struct {
	from string
	done bool
}

func (h *hookInstaller) install(ctx context.Context, to string) error {
	if h.done {
		return nil
	}
	if err := removeHalfHooks(filepath.Dir(to)); err != nil {
		return err
	}
	if err := h.update(ctx, to); err != nil {
		return fmt.Errorf("%w: use the plugin's own image, or set --nvidia-cdi-hook-path to a hook on the host", err)
	}
	if err := checkExecutable(filepath.Dir(to)); err != nil {
		return err
	}
	h.done = true
	return nil
}

// update copies the hook unless it is there. On a full disk it keeps the hook of another version
// of the plugin: without a hook the node would offer no GPU.
func (h *hookInstaller) update(ctx context.Context, to string) error {
	wanted, err := digest(h.from)
	if err != nil {
		return err
	}
	there, usable := digestOfProgram(to)
	if usable && there == wanted {
		return nil
	}
	err = installHook(h.from, to)
	if usable && atomicfile.IsFull(err) {
		klog.FromContext(ctx).Info("Keeping the CDI hook of another version of the plugin; free space and restart the plugin to replace it", "hook", to, "reason", err.Error())
		return nil
	}
	return err
}

// digestOfProgram returns usable only for a file that every user can run.
func digestOfProgram(path string) (sum [sha256.Size]byte, usable bool) {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != hookMode {
		return sum, false
	}
	sum, err = digest(path)
	return sum, err == nil
}

func digest(path string) (sum [sha256.Size]byte, err error) {
	file, err := os.Open(path)
	if err != nil {
		return sum, err
	}
	defer func() { _ = file.Close() }() // it is only read
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}

// checkExecutable refuses a file system that is mounted noexec: the container runtime could not
// run the hook. A bind mount inherits the flag.
func checkExecutable(dir string) error {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	if stat.Flags&unix.ST_NOEXEC != 0 {
		return fmt.Errorf("%s is mounted noexec, so the container runtime cannot start a hook from it: set --nvidia-cdi-hook-directory (the chart's nvidiaCDIHookDirectory) to a directory on the host from which programs run", dir)
	}
	return nil
}

// halfHookAge is longer than a copy takes: another plugin may write a younger one.
const halfHookAge = time.Minute

// removeHalfHooks removes the drafts of processes that were killed.
func removeHalfHooks(dir string) error {
	halves, err := filepath.Glob(filepath.Join(dir, "."+hookName+"-*"))
	if err != nil {
		return err
	}
	for _, half := range halves {
		info, err := os.Lstat(half)
		if err != nil || time.Since(info.ModTime()) < halfHookAge {
			continue // another plugin writes it, or it is gone
		}
		if err := os.Remove(half); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// installHook replaces the hook at once: a container may start meanwhile.
func installHook(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	draft := filepath.Join(filepath.Dir(to), "."+hookName+"-"+rand.Text())
	return atomicfile.Write(to, draft, source, hookMode)
}
