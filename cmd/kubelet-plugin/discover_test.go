package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/diagnosis"
	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/driverroot"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// The library is loaded from the driver root of a simulated machine and called through C. The
// output equals the slices of the same machine in process; pkg/slice has their golden files.
func TestDiscover(t *testing.T) {
	const machine = "p5.48xlarge"
	root := simulate(t, fixture.File(t, machine))
	table, err := execute(t, "discover", "--container-driver-root="+root)
	must(t, err)
	fixture.Golden(t, machine+".txt", table)

	node := fixture.Node(t, machine)
	var published strings.Builder
	must(t, printYAML(&published, node, gpu.Shapes(node.GPUs, gpu.ByDefault)))
	yaml, err := execute(t, "discover", "-o", "yaml", "--container-driver-root="+root)
	must(t, err)
	if yaml != published.String() {
		t.Errorf("discover differs from what is published:\n%s", yaml)
	}
	expectNoticed(t, root)
	expectReports(t, root)
}

// expectReports has the machine tested, with its own files and programs.
func expectReports(t *testing.T, root string) {
	t.Helper()
	dir := t.TempDir()
	state := driver.DataDir(dir, "gpu.nvidia.com")
	must(t, errors.Join(os.Mkdir(state, 0o755), os.WriteFile(filepath.Join(state, hookName), nil, 0o755)))
	arguments := []string{"selftest", "-o", "json", "--mutate", "--container-driver-root=" + root, "--kubelet-plugins-directory-path=" + dir, "--cdi-root=" + dir}
	output, err := execute(t, arguments...)
	var report diagnosis.Report
	if decode := json.Unmarshal([]byte(output), &report); decode != nil {
		t.Fatalf("%v, after %v:\n%s", decode, err, output)
	}
	for _, check := range report.Checks {
		// The test may not run as root, and there is no MPS supervisor.
		if want := check.Name == "MPS"; (check.Status == diagnosis.Skipped) != want || check.Status == diagnosis.Failed && check.Name != "privileges" {
			t.Errorf("%s: %s, %q", check.Name, check.Status, check.Findings)
		}
	}
	if len(report.GPUs) != 8 || report.DriverVersion == "" || report.Version == "" || len(report.Checks) < 10 {
		t.Errorf("got\n%s", output)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*/claims/*.json")); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}

// expectNoticed removes the loaded library. It is no test of its own: a process loads the library
// of one machine.
func expectNoticed(t *testing.T, root string) {
	t.Helper()
	library, err := openHardware(t.Context(), cdi.Roots{Host: "/", Local: root})
	must(t, err)
	defer library.Close()
	if err := library.CheckFile(); err != nil {
		t.Error(err)
	}
	path := library.Path()
	must(t, os.Rename(path, path+".old"))
	fixture.Sentence(t, library.CheckFile(), path, "is gone", "the plugin ends, and starts anew")
	must(t, os.Rename(path+".old", path))
}

func TestTablesOfOtherMachines(t *testing.T) {
	for _, machine := range []string{"p4d.24xlarge", "mixed", "mig-static"} {
		t.Run(machine, func(t *testing.T) {
			var table strings.Builder
			node := fixture.Node(t, machine)
			must(t, printTable(&table, node, gpu.Shapes(node.GPUs, gpu.ByDefault)))
			fixture.Golden(t, machine+".txt", table.String())
		})
	}
}

func TestWhatTheCatalogueDoesNotPredict(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*gpu.GPU)
		want   []string
	}{
		"nothing": {func(*gpu.GPU) {}, nil},
		"a driver that lists no profiles": {func(g *gpu.GPU) { g.Profiles = nil },
			[]string{"The driver lists no MIG profiles of NVIDIA H100 80GB HBM3 while MIG is disabled, so partitions are offered when it is enabled"}},
		"an engine": {func(g *gpu.GPU) { g.Profiles[0].Decoders = 0 },
			[]string{"NVIDIA H100 80GB HBM3 differs from the catalogue: profile 1g.10gb (ID 19) has decoders 0, predicted was 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := fixture.Node(t, "p5.48xlarge")
			for i := range node.GPUs {
				tc.change(&node.GPUs[i])
			}
			if got := unlikeCatalogue(node.GPUs); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

// simulate runs the machine in this process, behind the C library.
func simulate(t *testing.T, file model.File) (root string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mica-") // short, as sockets need
	must(t, err)
	binaries := filepath.Join(dir, "bin")
	build := exec.Command("make", "-C", "../..", "-f", "test/nvmlsim/nvmlsim.mk", "NVMLSIM_BIN="+binaries, "nvml-sim")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the simulator's libraries: %v\n%s", err, output)
	}
	// Device nodes of this machine must not restrict what the library shows.
	t.Setenv("NVML_SIM_DEV", binaries)
	machine := fixture.Machine(t, file)
	root = filepath.Join(dir, "root")
	tree, err := driverroot.Emit(root, binaries, machine)
	must(t, err)
	listener, err := wire.Listen(filepath.Join(root, driverroot.HostSocket))
	must(t, err)
	server := wire.NewServer(wire.Sessions(machine), machine, machine)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener, false) }()
	t.Cleanup(func() {
		cancel()
		listener.Close()
		server.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := tree.Remove(); err != nil {
			t.Error(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return root
}

// A plugin that looks in the wrong place says where the driver is.
func TestADriverInAnotherPlace(t *testing.T) {
	host := t.TempDir()
	library := filepath.Join(host, "run/nvidia/driver/usr/lib64/libnvidia-ml.so.1")
	must(t, errors.Join(os.MkdirAll(filepath.Dir(library), 0o755), os.WriteFile(library, nil, 0o755)))
	_, err := execute(t, "discover", "--container-driver-root="+host)
	fixture.Sentence(t, err, "no usable NVML library", "the NVIDIA driver is at /run/nvidia/driver: set nvidiaDriverRoot=/run/nvidia/driver")
}
