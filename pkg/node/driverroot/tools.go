package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// ErrMissing: the program is not installed below the driver root. It is a kind of
// fs.ErrNotExist.
var ErrMissing error = missing{}

type missing struct{}

func (missing) Error() string        { return "a part of the NVIDIA driver is missing" }
func (missing) Is(target error) bool { return target == fs.ErrNotExist }

// anchors are libraries of which every installation has one: the directory of
// the first that is found is where the driver's other libraries are.
var anchors = []string{"libnvidia-ml.so.1", "libcuda.so.1"}

// linked are the libraries that the driver's programs load, and nothing else of
// the directory that they are in.
var linked = []string{"libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*"}

// Tools are the programs of an installed driver. It is safe for concurrent use.
type Tools struct {
	root, links string
	mu          sync.Mutex
}

// NewTools finds programs below root. Links is a directory that it makes when a
// program is needed: for symbolic links to the driver's libraries. Processes with
// the same root can have the same one.
func NewTools(root, links string) *Tools { return &Tools{root: root, links: links} }

// Find returns the path of a program. The error is ErrMissing where it is not
// installed.
func (t *Tools) Find(program string) (string, error) {
	if path, found := Program(t.root, program); found {
		return path, nil
	}
	return "", fmt.Errorf("%w: %s is in none of the program directories below %s: install the part of the NVIDIA driver that has it, or set --nvidia-driver-root (and the chart's nvidiaDriverRoot) to where it is installed",
		ErrMissing, program, t.root)
}

// Devices is the directory of the device nodes that programs of the driver need. The
// /dev of this process must be the host's.
func (t *Tools) Devices() string { return filepath.Join(Devices(t.root, "/"), "dev") }

// Environment is that of this process, changed so that a program of the driver
// finds the driver's libraries and the driver's other programs. The directory of
// the libraries itself is not named: it is also that of the C library of the
// host, which does not fit the loader of this process' root file system.
func (t *Tools) Environment() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.link(); err != nil {
		return nil, err
	}
	paths := make([]string, 0, len(programDirs)+1)
	for _, dir := range programDirs {
		paths = append(paths, filepath.Join(t.root, dir))
	}
	if own := os.Getenv("PATH"); own != "" {
		paths = append(paths, own)
	}
	environment := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		// LD_PRELOAD would bring what the links keep out, and CUDA's variables are
		// those of whoever starts a program.
		return strings.HasPrefix(variable, "LD_") || strings.HasPrefix(variable, "CUDA_") || strings.HasPrefix(variable, "PATH=")
	})
	return append(environment, "LD_LIBRARY_PATH="+t.links, "PATH="+strings.Join(paths, ":")), nil
}

// link makes the links right: a driver that was installed anew has other files.
func (t *Tools) link() error {
	wanted, err := t.libraries()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(t.links, 0o755); err != nil {
		return fmt.Errorf("make the directory of links to the NVIDIA driver's libraries: %w", err)
	}
	entries, err := os.ReadDir(t.links)
	if err != nil {
		return fmt.Errorf("look at the links to the NVIDIA driver's libraries: %w", err)
	}
	for _, entry := range entries {
		if _, keep := wanted[entry.Name()]; !keep {
			if err := os.Remove(filepath.Join(t.links, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove an old link to the NVIDIA driver's libraries: %w", err)
			}
		}
	}
	for name, target := range wanted {
		if err := replaceLink(filepath.Join(t.links, name), target); err != nil {
			return fmt.Errorf("link to the NVIDIA driver's library %s: %w", target, err)
		}
	}
	return nil
}

// libraries are the files to link to, by name.
func (t *Tools) libraries() (map[string]string, error) {
	for _, anchor := range anchors {
		path, found := Library(t.root, anchor)
		if !found {
			continue
		}
		libraries := map[string]string{}
		for _, pattern := range linked {
			files, err := filepath.Glob(filepath.Join(filepath.Dir(path), pattern))
			if err != nil {
				return nil, err
			}
			for _, file := range files {
				libraries[filepath.Base(file)] = file
			}
		}
		return libraries, nil
	}
	return nil, fmt.Errorf("%w: neither %s is in one of the library directories below %s: install the NVIDIA driver there", ErrMissing, strings.Join(anchors, " nor "), t.root)
}

// replaceLink is not atomic: only another driver than before needs it, which no
// program of the old one can use any more.
func replaceLink(path, target string) error {
	right := func() bool { before, err := os.Readlink(path); return err == nil && before == target }
	if right() {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, path); err != nil && !right() { // another process was faster
		return err
	}
	return nil
}
