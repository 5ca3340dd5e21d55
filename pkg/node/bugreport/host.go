package bugreport

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// Versions are Mica's, that of Go, and what the kernel says of itself and of its NVIDIA module.
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

// Flags are the settings of a command: its flags that are not empty, whatever has set them.
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

// Mounts are those on which the paths are, less empty ones, as this process has them.
func Mounts(proc fs.FS, paths ...string) Section {
	return Section{"mounts", func(context.Context) (any, error) {
		content, err := fs.ReadFile(proc, "self/mountinfo")
		if err != nil {
			return nil, err
		}
		found := map[string]string{}
		for _, path := range paths {
			if path != "" {
				found[path] = mountOf(content, path)
			}
		}
		return found, nil
	}}
}

// mountOf is the last mount of those on which a path is, in words.
func mountOf(mountinfo []byte, path string) string {
	point, words := "", "none"
	lines := bufio.NewScanner(bytes.NewReader(mountinfo))
	for lines.Scan() {
		// proc_pid_mountinfo(5): ID, parent, device, root, mount point, options, optional
		// fields, a hyphen, type, source, options of the file system.
		fields := strings.Fields(lines.Text())
		before, after, _ := strings.Cut(lines.Text(), " - ")
		kind := strings.Fields(after)
		if len(strings.Fields(before)) < 6 || len(kind) < 2 {
			continue
		}
		at := strings.TrimSuffix(fields[4], "/")
		if len(at) >= len(point) && (path == at || strings.HasPrefix(path, at+"/")) {
			point, words = at, fmt.Sprintf("%s: %s of %s %s (%s)", fields[4], fields[3], kind[0], kind[1], fields[5])
		}
	}
	return words
}

// Devices are the device nodes of NVIDIA below the directories, less those that have no name.
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

// maxNodes bounds what is shown of a directory: a node of 8 GPUs that are all partitioned has some
// hundred in nvidia-caps.
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

// deviceNode is such as "nvidia0 195:0 crw-rw-rw- 0:0".
func deviceNode(path string) (string, bool) {
	var stat unix.Stat_t
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", false
	case err == nil:
		err = unix.Lstat(path, &stat)
	}
	if err != nil {
		return err.Error(), true
	}
	if info.IsDir() {
		return "", false
	}
	return fmt.Sprintf("%s %d:%d %s %d:%d", filepath.Base(path), unix.Major(stat.Rdev), unix.Minor(stat.Rdev), info.Mode(), stat.Uid, stat.Gid), true
}
