// Package crash_test kills the real plugin, on a real simulator daemon, wherever
// it can be killed, and finds the node in order after the next start; and it runs the
// plugin on machines with the habits of real ones. It builds both, and stands in for
// kubelet and for the API server.
package crash_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// binaries is the directory that the plugin and the simulator are built into.
var binaries string

// administrator names the driver root in the environment of a process of this test
// that sets a GPU's compute mode.
const administrator = "MICA_CRASH_ADMINISTRATOR"

// exporter names the driver root of a process of this test that holds NVML until its
// input ends.
const exporter = "MICA_CRASH_EXPORTER"

func TestMain(m *testing.M) {
	if root := os.Getenv(exporter); root != "" {
		if err := holdNVML(root); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if root := os.Getenv(administrator); root != "" {
		if err := setComputeMode(root, os.Getenv("UUID"), os.Getenv("MODE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setComputeMode(root, uuid, mode string) error {
	library, err := nvml.Open(root)
	if err != nil {
		return err
	}
	return errors.Join(library.SetComputeMode(uuid, mode), library.Close())
}

// holdNVML has handles of all GPUs, as a metrics exporter has.
func holdNVML(root string) error {
	library, err := nvml.Open(root)
	if err != nil {
		return err
	}
	_, unreadable, err := library.Discover()
	if err := errors.Join(append(unreadable, err)...); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, library.Close())
}

func runTests(m *testing.M) (code int, err error) {
	if binaries, err = os.MkdirTemp("", "mica-crash-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(binaries)
	for _, build := range [][]string{
		{"make", "-C", "../..", "-f", "test/nvmlsim/nvmlsim.mk", "NVMLSIM_BIN=" + binaries, "nvml-sim"},
		{"go", "build", "-o", filepath.Join(binaries, "kubelet-plugin"), "../../cmd/kubelet-plugin"},
	} {
		if out, err := exec.Command(build[0], build[1:]...).CombinedOutput(); err != nil {
			return 1, fmt.Errorf("%q: %w\n%s", build, err, out)
		}
	}
	// Scenes mostly wait for processes, so that more run at once than there are processors.
	flag.Parse()
	if err := flag.Set("test.parallel", "6"); err != nil {
		return 1, err
	}
	return m.Run(), nil
}
