package nvml

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// installed is a driver root with the file of a library in it.
func installed(t *testing.T) (root, path string) {
	t.Helper()
	root = t.TempDir()
	path = filepath.Join(root, "usr/lib64", soname)
	must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o755)))
	return root, path
}

// asLoaded is the library as Open leaves it, without one to load.
func asLoaded(root string) (*Library, error) {
	path, err := findLibrary(root)
	remember(path)
	return &Library{path: path, root: root}, err
}

func TestTheFileThatWasLoadedIsLookedAt(t *testing.T) {
	root, path := installed(t)
	library, err := asLoaded(root)
	must(t, err)
	expect := func(when string, want error) {
		t.Helper()
		if err := library.CheckFile(); !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", when, err, want)
		}
	}
	expect("as it was loaded", nil)
	must(t, os.Rename(path, path+".old"))
	expect("while there is none", ErrReplaced)
	must(t, os.WriteFile(path, nil, 0o755))
	expect("with another one", ErrReplaced)
	must(t, os.Rename(path+".old", path))
	expect("with the first one again", nil)
	// The number of a file may be that of a file in another driver container.
	must(t, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)))
	expect("with another one of the same number", ErrReplaced)
}

// A driver container is unmounted on the host, and another one is mounted, while the plugin
// has what is above it mounted.
func TestADriverContainerThatIsReplaced(t *testing.T) {
	first, _ := installed(t)
	second, _ := installed(t)
	host, container := t.TempDir(), t.TempDir()
	var failed error
	skipped := ""
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and with the goroutine its mount namespace ends
		if err := syscall.Unshare(syscall.CLONE_NEWNS); err != nil {
			skipped = err.Error()
			return
		}
		failed = replaceContainer(host, container, first, second)
	}()
	<-done
	if skipped != "" {
		t.Skip("this process may not make a mount namespace: " + skipped)
	}
	if failed != nil {
		t.Error(failed)
	}
}

func replaceContainer(host, container, first, second string) error {
	bind := func(from, to string) error { return syscall.Mount(from, to, "", syscall.MS_BIND, "") }
	if err := errors.Join(
		syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""),
		syscall.Mount("none", host, "tmpfs", 0, ""),
		syscall.Mount("", host, "", syscall.MS_SHARED, ""),
		os.Mkdir(filepath.Join(host, "driver"), 0o755),
		bind(first, filepath.Join(host, "driver")),
		syscall.Mount(host, container, "", syscall.MS_BIND|syscall.MS_REC, ""),
		syscall.Mount("", container, "", syscall.MS_SLAVE|syscall.MS_REC, ""),
	); err != nil {
		return err
	}
	library, err := asLoaded(filepath.Join(container, "driver"))
	if err != nil {
		return err
	}
	if err := library.CheckFile(); err != nil {
		return err
	}
	if err := syscall.Unmount(filepath.Join(host, "driver"), syscall.MNT_DETACH); err != nil {
		return err
	}
	if err := library.CheckFile(); !errors.Is(err, ErrReplaced) {
		return errors.Join(errors.New("the end of the driver container is not seen"), err)
	}
	if err := bind(second, filepath.Join(host, "driver")); err != nil {
		return err
	}
	if err := library.CheckFile(); !errors.Is(err, ErrReplaced) {
		return errors.Join(errors.New("another driver container is not seen"), err)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
