package nvml

import (
	"fmt"
	"os"
	"sync"
)

// loaded are the files that this process has loaded, as they were then, by path.
var loaded sync.Map

// remember notes what the path leads to, before it is loaded.
func remember(path string) {
	if file, err := os.Stat(path); err == nil {
		loaded.LoadOrStore(path, file)
	}
}

// CheckFile compares the file that was loaded with what is installed now. It is ErrReplaced
// where that is another driver's, or none: only a new process can load another, and one that
// keeps the old one has a library that does not fit the kernel's driver. It asks NVML nothing.
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

// checkReplaced looks whether the path still leads to the file that was loaded
// first: a driver that is installed anew brings another.
func checkReplaced(path string) error {
	before, known := loaded.Load(path)
	if !known || same(before, path) {
		return nil
	}
	return fmt.Errorf("%w: %s is not the file that this process has loaded, as after the installation of another driver: restart the plugin to load the new one", ErrReplaced, path)
}

// same tells whether the path leads to the file that there was before. A driver container has
// a file system of its own, whose numbers may be those of the one before it. A file that
// vanishes just now is found missing next time.
func same(before any, path string) bool {
	was, isFile := before.(os.FileInfo)
	is, err := os.Stat(path)
	if err != nil || !isFile {
		return true
	}
	return os.SameFile(was, is) && was.Size() == is.Size() && was.ModTime().Equal(is.ModTime())
}
