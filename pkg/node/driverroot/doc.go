// Package driverroot finds the libraries and programs of an installed NVIDIA driver, and runs the
// programs in another root file system, such as the plugin's image. It never loads a library.
package driverroot

import (
	"io/fs"
	"os"
	"path/filepath"
)

// libraryDirs are the directories of shared libraries below a driver root: of RPM-based and
// Debian-based distributions, and of driver containers.
var libraryDirs = []string{
	"usr/lib64",
	"usr/lib/x86_64-linux-gnu",
	"usr/lib/aarch64-linux-gnu",
	"lib64",
	"lib/x86_64-linux-gnu",
	"lib/aarch64-linux-gnu",
	"usr/lib",
	"usr/local/nvidia/lib64",
	"home/kubernetes/bin/nvidia/lib64",
}

// programDirs are the directories of programs, in the same order.
var programDirs = []string{
	"usr/bin",
	"usr/sbin",
	"bin",
	"sbin",
	"opt/bin",
	"usr/local/nvidia/bin",
	"home/kubernetes/bin/nvidia/bin",
}

// Devices is the root below which the device nodes are: a driver container has a /dev of its own,
// a driver on the host uses the machine's. It is never this container's, in which the driver's
// library makes nodes that the host lacks. machine is the host's root in this container, if it is
// mounted.
func Devices(root, machine string) string {
	if _, err := os.Stat(filepath.Join(root, "dev/nvidiactl")); err == nil || machine == "" {
		return root
	}
	return machine
}

// Library finds a shared library below a driver root.
func Library(root, name string) (path string, found bool) { return find(root, libraryDirs, name) }

// Program finds a program below a driver root.
func Program(root, name string) (path string, found bool) { return find(root, programDirs, name) }

func find(root string, dirs []string, name string) (string, bool) {
	for _, dir := range dirs {
		if path, found := resolve(root, filepath.Join(root, dir, name)); found {
			return path, true
		}
	}
	return "", false
}

// maxLinks is as many as the kernel follows.
const maxLinks = 40

// resolve follows links with absolute targets, such as Debian's alternatives, as from
// within the root. The path of a file that is found without them stays as it is.
func resolve(root, path string) (string, bool) {
	last := path // that the kernel reaches by itself
	for range maxLinks {
		info, err := os.Lstat(path)
		if err != nil || info.IsDir() {
			return "", false
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return last, true
		}
		target, err := os.Readlink(path)
		switch {
		case err != nil:
			return "", false
		case filepath.IsAbs(target):
			path = filepath.Join(root, target)
			last = path
		default:
			dir, err := filepath.EvalSymlinks(filepath.Dir(path)) // or ".." would be another's
			if err != nil {
				return "", false
			}
			path = filepath.Join(dir, target)
		}
	}
	return "", false
}
