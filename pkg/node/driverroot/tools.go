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

// ErrMissing: the program is not installed below the driver root. It is an fs.ErrNotExist.
var ErrMissing error = missing{}

type missing struct{}

func (missing) Error() string        { return "a part of the NVIDIA driver is missing" }
func (missing) Is(target error) bool { return target == fs.ErrNotExist }

// anchors are libraries. Every installation has one of them, in the directory of the others.
var anchors = []string{"libnvidia-ml.so.1", "libcuda.so.1"}

// linked are the libraries that the driver's programs load.
var linked = []string{"libcuda.so*", "libcudadebugger.so*", "libnvidia-*.so*"}

// Tools are the programs of an installed driver. They are safe for concurrent use.
type Tools struct {
	root, links string
	mu          sync.Mutex
}

// NewTools finds programs below root. links is a directory for symbolic links to the driver's
// libraries, made on first use. Processes with the same root can share it.
func NewTools(root, links string) *Tools { return &Tools{root: root, links: links} }

// Find returns the path of a program, or ErrMissing.
func (t *Tools) Find(program string) (string, error) {
	if path, found := Program(t.root, program); found {
		return path, nil
	}
	return "", fmt.Errorf("%w: %s is in none of the program directories below %s: install the part of the NVIDIA driver that has it, or set --nvidia-driver-root (and the chart's nvidiaDriverRoot) to where it is installed",
		ErrMissing, program, t.root)
}

// Devices is the directory of the device nodes for the driver's programs. This process's /dev
// must be the host's.
func (t *Tools) Devices() string { return filepath.Join(Devices(t.root, "/"), "dev") }

// Environment is this process's, with paths to the driver's libraries and programs. It has links
// instead of the library directory, which also has the host's C library: that does not fit this
// root file system's loader.
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
		// LD_PRELOAD would bring other libraries, and callers set CUDA's variables.
		return strings.HasPrefix(variable, "LD_") || strings.HasPrefix(variable, "CUDA_") || strings.HasPrefix(variable, "PATH=")
	})
	return append(environment, "LD_LIBRARY_PATH="+t.links, "PATH="+strings.Join(paths, ":")), nil
}

// link updates the links: a driver that was installed again has other files.
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

// libraries returns the files to link to, by name.
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

// replaceLink is not atomic: it only replaces links to an old driver, whose programs do not work
// any more.
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
