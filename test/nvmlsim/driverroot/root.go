// Package driverroot owns the directory that looks like the root of a machine
// with the NVIDIA driver installed: libraries and tools, device nodes, and what
// the kernel and the driver show in /proc and /sys. It writes the tree from the
// simulated machine, lets it follow the machine's MIG instances, and removes it
// again; of the machine's other state it shows nothing that changes.
package driverroot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// Paths below the root.
const (
	// LibraryDir is where the driver's libraries lie.
	LibraryDir = "usr/lib64"
	// HostSocket is where the NVML library looks for the daemon: beside itself.
	HostSocket = LibraryDir + "/nvml-sim.sock"
	// ContainerSocket is where the library in a container looks for the daemon:
	// CDI specs of nvcdi mount this socket of the persistence daemon there.
	ContainerSocket = "run/nvidia-persistenced/socket"

	// marker is the file that distinguishes the simulator's tree from other directories.
	marker = ".nvml-sim"
)

// Tree is a directory that is being filled. The first error sticks and makes
// everything after it do nothing.
type Tree struct {
	root string
	// made is set if the directory was not there before.
	made bool
	// nodes says who makes device nodes.
	nodes model.DeviceNodes
	// binaries is where the driver's files come from.
	binaries string

	// mu guards the rest once the tree is emitted.
	mu sync.Mutex
	// module is the version of the kernel module, attached are the GPUs that it has.
	module   string
	attached map[int]bool
	err      error
	removed  bool
	failed   chan error
}

// Emit writes the tree for the machine. binaries is the directory that holds
// the libraries and the programs of the simulator. A tree that an
// earlier run left behind is replaced; any other directory must be empty. The
// tree follows the machine until it is removed.
func Emit(root, binaries string, machine *model.Machine) (*Tree, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find the driver root's absolute path: %w", err)
	}
	t := &Tree{
		root: root, binaries: binaries, nodes: machine.File().Habits.DeviceNodes,
		attached: map[int]bool{}, failed: make(chan error, 1),
	}
	if err := t.claim(); err != nil {
		return nil, err
	}
	t.driver(machine)
	t.devices(machine)
	t.dir("sys/bus/pci/devices")
	t.gpus(machine)
	t.instances(machine)
	if t.err != nil {
		return nil, errors.Join(t.err, t.Remove())
	}
	return t, nil
}

// claim makes the directory ours and empty.
func (t *Tree) claim() error {
	entries, err := os.ReadDir(t.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.made = true
	case err != nil:
		return fmt.Errorf("look into the driver root: %w", err)
	case len(entries) > 0:
		if _, err := os.Lstat(filepath.Join(t.root, marker)); err != nil {
			return fmt.Errorf("the driver root %s is not empty and was not made by the simulator: "+
				"empty it or choose another directory", t.root)
		}
		if err := t.clear(); err != nil {
			return err
		}
	}
	t.file(marker, "This tree is emitted by nvml-sim, which removes it when it ends.\n")
	return t.err
}

// Remove removes the tree, and the directory unless it was there before.
func (t *Tree) Remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.removed = true
	if err := t.clear(); err != nil || !t.made {
		return err
	}
	if err := os.Remove(t.root); err != nil {
		return fmt.Errorf("remove the driver root: %w", err)
	}
	return nil
}

// clear removes what is in the directory, the marker last: a tree that could
// only be removed in part is still known as ours.
func (t *Tree) clear() error {
	entries, err := os.ReadDir(t.root)
	if err != nil {
		return fmt.Errorf("look into the driver root: %w", err)
	}
	for _, entry := range entries {
		if entry.Name() == marker {
			continue
		}
		if err := os.RemoveAll(filepath.Join(t.root, entry.Name())); err != nil {
			return fmt.Errorf("empty the driver root: %w", err)
		}
	}
	if err := os.Remove(filepath.Join(t.root, marker)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("empty the driver root: %w", err)
	}
	return nil
}

func (t *Tree) fail(err error) {
	if t.err == nil && err != nil {
		t.err = fmt.Errorf("emit the driver root: %w", err)
	}
}

// path makes the directory that a file of the tree lies in.
func (t *Tree) path(name string) string {
	path := filepath.Join(t.root, name)
	t.fail(os.MkdirAll(filepath.Dir(path), 0o755))
	return path
}

func (t *Tree) dir(name string) {
	if t.err == nil {
		t.fail(os.MkdirAll(t.path(name), 0o755))
	}
}

func (t *Tree) file(name, content string) {
	if t.err == nil {
		t.fail(os.WriteFile(t.path(name), []byte(content), 0o644))
	}
}

func (t *Tree) copy(name, from string) {
	if t.err != nil {
		return
	}
	content, err := os.ReadFile(from)
	if errors.Is(err, fs.ErrNotExist) {
		t.fail(fmt.Errorf("%s is not there: build it with make nvml-sim, or name its directory with --library-dir", from))
		return
	}
	t.fail(err)
	t.replace(name, func(draft string) error { return os.WriteFile(draft, content, 0o755) })
}

// replace puts a new file in the place of one that may be there.
func (t *Tree) replace(name string, create func(draft string) error) {
	if t.err != nil {
		return
	}
	path := t.path(name)
	if err := create(path + ".new"); err != nil {
		t.fail(err)
		return
	}
	t.fail(os.Rename(path+".new", path))
}

// link makes a symbolic link. A target that names a place in the tree (it
// begins with "/") is made relative, so that the tree works wherever it is
// mounted.
func (t *Tree) link(name, target string) {
	if t.err != nil {
		return
	}
	if inTree, ok := strings.CutPrefix(target, "/"); ok {
		relative, err := filepath.Rel(filepath.Dir(name), inTree)
		t.fail(err)
		target = relative
	}
	t.replace(name, func(draft string) error { return os.Symlink(target, draft) })
}
