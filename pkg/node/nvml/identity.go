package nvml

import (
	"fmt"
	"os"
	"sync"
)

// loaded are the files that this process has loaded, by path.
var loaded sync.Map

// remember notes the file of a path before it is loaded.
func remember(path string) {
	if file, err := os.Stat(path); err == nil {
		loaded.LoadOrStore(path, file)
	}
}

// CheckFile compares the loaded library with the installed one. It returns ErrReplaced if it differs
// or is gone: only a new process can load another, and the old library does not fit the new kernel
// module. It makes no NVML call.
func (l *Library) CheckFile() error {
	if l.path == "" {
		return nil // a stand-in
	}
	path, err := findLibrary(l.root)
	if err != nil {
		return fmt.Errorf("%w: %s, which this process has loaded, is gone, as when the NVIDIA driver is upgraded: the plugin ends, and starts anew with what is installed then", ErrReplaced, l.path)
	}
	before, _ := loaded.Load(l.path)
	if !same(before, path) {
		return fmt.Errorf("%w: %s is not the file that this process has loaded, as after an upgrade of the NVIDIA driver: the plugin ends, and starts anew with the new one", ErrReplaced, path)
	}
	return nil
}

// checkReplaced checks whether the path still leads to the file that was loaded first: a new
// installation of the driver replaces it.
func checkReplaced(path string) error {
	before, known := loaded.Load(path)
	if !known || same(before, path) {
		return nil
	}
	return fmt.Errorf("%w: %s is not the file that this process has loaded, as after the installation of another driver: restart the plugin to load the new one", ErrReplaced, path)
}

// same reports whether the path leads to the same file as before. A driver container has its own file
// system, whose numbers may equal those of its predecessor. A file that vanishes during the check is
// found missing the next time.
func same(before any, path string) bool {
	was, isFile := before.(os.FileInfo)
	is, err := os.Stat(path)
	if err != nil || !isFile {
		return true
	}
	return os.SameFile(was, is) && was.Size() == is.Size() && was.ModTime().Equal(is.ModTime())
}
