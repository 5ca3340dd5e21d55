package nvml

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// stub is an NVML whose start fails with that code.
func stub(t *testing.T, path string, code nvml.Return) {
	t.Helper()
	var source strings.Builder
	for _, symbol := range requiredSymbols {
		switch symbol {
		case "nvmlErrorString":
			source.WriteString("const char *nvmlErrorString(int r) { return \"bad\"; }\n")
		default:
			fmt.Fprintf(&source, "int %s(void) { return %d; }\n", symbol, code)
		}
	}
	command := exec.Command("gcc", "-shared", "-fPIC", "-x", "c", "-o", path, "-")
	command.Stdin = strings.NewReader(source.String())
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("gcc, which cgo needs as well: %v: %s", err, output)
	}
}

// What a driver that is installed anew brings is not what this process has.
func TestALibraryThatWasReplaced(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "usr/lib64", soname)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	stub(t, path, nvml.ERROR_LIB_RM_VERSION_MISMATCH)
	for range 2 {
		if _, err := Open(root); !errors.Is(err, ErrLibrary) || errors.Is(err, ErrReplaced) {
			t.Fatalf("got %v, want the mismatch", err)
		} else if !strings.Contains(err.Error(), "is of another version than the kernel module") || !strings.Contains(err.Error(), "reboot the node") {
			t.Errorf("%v does not say what to do", err)
		}
	}
	must(t, os.Rename(path, path+".old"))
	if _, err := Open(root); !errors.Is(err, ErrLibrary) || errors.Is(err, ErrReplaced) {
		t.Errorf("got %v between the removal of the old driver and the installation of the new one", err)
	}
	stub(t, path, nvml.ERROR_DRIVER_NOT_LOADED)
	_, err := Open(root)
	if !errors.Is(err, ErrReplaced) || errors.Is(err, ErrLibrary) || !strings.Contains(err.Error(), path+" is not the file that this process has loaded") {
		t.Errorf("got %v", err)
	}
	// This is why: the loader still has the old one.
	if _, err := New(nvml.New(nvml.WithLibraryPath(path)), nil); errors.Is(err, ErrDriverNotLoaded) {
		t.Error("the loader gives the new file, so ErrReplaced is not needed")
	}
}
