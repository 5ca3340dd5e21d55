package nvml_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// What is no NVML is refused in a sentence; the process survives it.
func TestOpenRefusesWhatIsNotNVML(t *testing.T) {
	for name, tc := range map[string]struct {
		install func(t *testing.T, path string)
		want    []string
	}{
		"nothing there": {
			install: func(*testing.T, string) {},
			want:    []string{"libnvidia-ml.so.1 is in none of the library directories below ", "install the NVIDIA driver there or set --nvidia-driver-root"},
		},
		"a dangling link": {
			install: func(t *testing.T, path string) {
				must(t, os.Symlink("libnvidia-ml.so.580.95.05", path))
			},
			want: []string{"is in none of the library directories below "},
		},
		"a text file": {
			install: func(t *testing.T, path string) {
				must(t, os.WriteFile(path, []byte("this is no library\n"), 0o755))
			},
			want: []string{"load ", "libnvidia-ml.so.1", "reinstall the NVIDIA driver's user-space libraries"},
		},
		"an empty file": {
			install: func(t *testing.T, path string) {
				must(t, os.WriteFile(path, nil, 0o755))
			},
			want: []string{"load ", "reinstall the NVIDIA driver's user-space libraries"},
		},
		"another library": {
			install: func(t *testing.T, path string) { compile(t, path, "int answer(void) { return 42; }") },
			want:    []string{"lacks the function nvmlInit_v2", "install a supported NVIDIA driver"},
		},
		"an NVML that is too old": {
			install: func(t *testing.T, path string) {
				compile(t, path, "int nvmlInit_v2(void) { return 0; } int nvmlShutdown(void) { return 0; } const char *nvmlErrorString(int r) { return r ? \"bad\" : \"good\"; }")
			},
			want: []string{"lacks the function nvmlSystemGetDriverVersion", "a driver older than R535"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, "usr/lib64/libnvidia-ml.so.1")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			tc.install(t, path)
			library, err := nvml.Open(root)
			if err == nil {
				t.Fatalf("opened %s", library.Path())
			}
			fixture.Sentence(t, err, append(tc.want, root)...)
			if !errors.Is(err, nvml.ErrLibrary) {
				t.Errorf("%v is not ErrLibrary", err)
			}
			if errors.Is(err, nvml.ErrDriverNotLoaded) {
				t.Errorf("%v is ErrDriverNotLoaded as well", err)
			}
		})
	}
}

func compile(t *testing.T, path, source string) {
	t.Helper()
	command := exec.Command("gcc", "-shared", "-fPIC", "-x", "c", "-o", path, "-")
	command.Stdin = strings.NewReader(source)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("gcc, which cgo needs as well: %v: %s", err, output)
	}
}

func TestOpenLooksWhereDistributionsInstall(t *testing.T) {
	for _, dir := range []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu",
		"lib/aarch64-linux-gnu", "usr/lib", "usr/local/nvidia/lib64", "home/kubernetes/bin/nvidia/lib64",
	} {
		t.Run(dir, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, dir, "libnvidia-ml.so.1")
			must(t, os.MkdirAll(filepath.Dir(path), 0o755))
			must(t, os.WriteFile(path, []byte("no library"), 0o755))
			if _, err := nvml.Open(root); err == nil || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want an error about %s", err, path)
			}
		})
	}
}

// Each sentinel is what callers tell apart; a return code is at most one of them.
func TestErrorsAreTheirSentinel(t *testing.T) {
	sentinels := map[string]error{
		"ErrLibrary": nvml.ErrLibrary, "ErrDriverNotLoaded": nvml.ErrDriverNotLoaded,
		"ErrNotSupported": nvml.ErrNotSupported, "ErrNotFound": nvml.ErrNotFound, "ErrGPULost": nvml.ErrGPULost,
	}
	for ret, want := range map[gonvml.Return]string{
		gonvml.ERROR_LIBRARY_NOT_FOUND:       "ErrLibrary",
		gonvml.ERROR_FUNCTION_NOT_FOUND:      "ErrLibrary",
		gonvml.ERROR_LIB_RM_VERSION_MISMATCH: "ErrLibrary",
		gonvml.ERROR_DRIVER_NOT_LOADED:       "ErrDriverNotLoaded",
		gonvml.ERROR_NOT_SUPPORTED:           "ErrNotSupported",
		gonvml.ERROR_NOT_FOUND:               "ErrNotFound",
		gonvml.ERROR_GPU_IS_LOST:             "ErrGPULost",
		gonvml.ERROR_UNKNOWN:                 "",
		gonvml.ERROR_TIMEOUT:                 "",
		gonvml.ERROR_NO_PERMISSION:           "",
	} {
		err := &nvml.Error{Call: "read the UUID", Device: "GPU 1", Return: ret}
		for name, sentinel := range sentinels {
			if errors.Is(err, sentinel) != (name == want) {
				t.Errorf("errors.Is(%v, %s) is %t", err, name, name != want)
			}
		}
		if text := err.Error(); !strings.HasPrefix(text, "read the UUID of GPU 1: NVML answered ") {
			t.Errorf("got sentence %q", text)
		}
	}
}

func TestNewReportsWhyNVMLDoesNotStart(t *testing.T) {
	machine := fixture.Machine(t, fixture.File(t, "g6.xlarge"))
	must(t, machine.Fail(model.Failure{Function: "nvmlInit_v2", Return: gonvml.ERROR_DRIVER_NOT_LOADED}))
	_, err := nvml.New(machine.Library(), fixture.Sysfs(machine.File()))
	if !errors.Is(err, nvml.ErrDriverNotLoaded) {
		t.Errorf("got %v, want ErrDriverNotLoaded", err)
	}
}

func TestCloseReleasesNVML(t *testing.T) {
	machine := fixture.Machine(t, fixture.File(t, "g6.xlarge"))
	library, client := fixture.Client(t, machine)
	if library.Path() != "" {
		t.Errorf("got path %q of an in-process library", library.Path())
	}
	if err := library.Close(); err != nil {
		t.Error(err)
	}
	if err := library.Close(); err == nil {
		t.Error("closed twice without an error")
	}
	if _, ret := client.DeviceGetCount(); ret != gonvml.ERROR_UNINITIALIZED {
		t.Errorf("got %v after Close, want uninitialized", ret)
	}
	if err := library.Use(func(gonvml.Interface) error { return errors.New("was called") }); !errors.As(err, new(*nvml.Error)) {
		t.Errorf("got %v from Use after Close, want it refused", err)
	}
}
