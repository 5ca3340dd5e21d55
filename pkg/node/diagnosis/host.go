package diagnosis

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// Versions shows the versions of Mica, Go, the kernel and its NVIDIA module.
func Versions(mica string, proc fs.FS) Section {
	return Section{"versions", func(context.Context) (any, error) {
		found := map[string]string{"mica": mica, "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}
		for name, file := range map[string]string{"kernel": "sys/kernel/osrelease", "nvidiaKernelModule": "driver/nvidia/version"} {
			content, err := fs.ReadFile(proc, file)
			first, _, _ := strings.Cut(string(content), "\n")
			found[name] = first
			if err != nil {
				found[name] = err.Error()
			}
		}
		return found, nil
	}}
}

// Flags shows a command's flags that are not empty.
func Flags(set *pflag.FlagSet) Section {
	return Section{"flags", func(context.Context) (any, error) {
		found := map[string]string{}
		set.VisitAll(func(flag *pflag.Flag) {
			if value := flag.Value.String(); value != "" && flag.Name != "help" {
				found[flag.Name] = value
			}
		})
		return found, nil
	}}
}

// Mounts shows this process's mounts at the paths that are not empty.
func Mounts(proc fs.FS, paths ...string) Section {
	return Section{"mounts", func(context.Context) (any, error) {
		content, err := fs.ReadFile(proc, "self/mountinfo")
		if err != nil {
			return nil, err
		}
		found := map[string]string{}
		for _, path := range paths {
			if path == "" {
				continue
			}
			if found[path], err = mountOf(content, path); err != nil {
				return nil, err
			}
		}
		return found, nil
	}}
}

// mountOf describes the mount that a path is on: the last of the deepest.
func mountOf(content []byte, path string) (string, error) {
	mounts, err := mountinfo.GetMountsFromReader(bytes.NewReader(content), func(m *mountinfo.Info) (skip, stop bool) {
		below, err := filepath.Rel(m.Mountpoint, path)
		return err != nil || !filepath.IsLocal(below), false
	})
	if err != nil || len(mounts) == 0 {
		return "none", err
	}
	slices.SortStableFunc(mounts, func(a, b *mountinfo.Info) int { return cmp.Compare(len(a.Mountpoint), len(b.Mountpoint)) })
	m := mounts[len(mounts)-1]
	return fmt.Sprintf("%s: %s of %s %s (%s)", m.Mountpoint, m.Root, m.FSType, m.Source, m.Options), nil
}

// Devices lists NVIDIA's device nodes below the directories that are not empty.
func Devices(directories ...string) Section {
	return Section{"deviceNodes", func(context.Context) (any, error) {
		found := map[string]any{}
		for _, dir := range directories {
			if dir == "" {
				continue
			}
			nodes, err := nodesIn(dir)
			if err != nil {
				found[dir] = err.Error()
				continue
			}
			found[dir] = nodes
		}
		return found, nil
	}}
}

// maxNodes bounds the device nodes per directory: 8 partitioned GPUs have some hundred.
const maxNodes = 512

func nodesIn(dir string) ([]string, error) {
	nodes := []string{}
	for _, pattern := range []string{"nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dri/*"} {
		paths, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if len(nodes) == maxNodes {
				return append(nodes, "more are left out"), nil
			}
			if node, is := deviceNode(path); is {
				nodes = append(nodes, node)
			}
		}
	}
	return nodes, nil
}

// deviceNode is such as "nvidia0 195:0 crw-rw-rw- 0:0". It is false for a directory, or if the
// node is gone.
func deviceNode(path string) (string, bool) {
	info, err := os.Lstat(path)
	if err != nil {
		return err.Error(), !errors.Is(err, fs.ErrNotExist)
	}
	stat := info.Sys().(*syscall.Stat_t) // always so on Linux
	return fmt.Sprintf("%s %d:%d %s %d:%d", filepath.Base(path), unix.Major(stat.Rdev), unix.Minor(stat.Rdev), info.Mode(), stat.Uid, stat.Gid), !info.IsDir()
}
