// Package launch owns the way from a command line to a running cluster: it
// checks the machine, builds what is missing, assembles the images, starts the
// keeper and waits for the node. It never enters the sandbox.
package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/mica-gpu/mica/test/cluster/internal/build"
	"github.com/mica-gpu/mica/test/cluster/internal/image"
	"github.com/mica-gpu/mica/test/cluster/internal/layout"
	"github.com/mica-gpu/mica/test/cluster/internal/supervisor"
)

// Options are what a user decides about a cluster.
type Options struct {
	Dir layout.Dir
	// SimNode is the machine that the NVML simulator plays; empty for none.
	SimNode string
	// Emulate is an older Kubernetes that the control plane behaves as; empty for none.
	Emulate string
	// SimBinary is the simulator.
	SimBinary string
	// HostGPU uses the machine's own driver and GPUs.
	HostGPU bool
	// Private clusters end with the process that started them.
	Private bool
	// Logs is where a private cluster's logs are kept when it is gone; empty for
	// nowhere.
	Logs string
	// Cache builds the binaries.
	Cache *build.Cache
	// Executable is this program.
	Executable string
	// Progress receives what happens.
	Progress io.Writer
}

// Check reports whether the options go together.
func (o Options) Check() error {
	if o.SimNode != "" && o.HostGPU {
		return errors.New("--sim-node and --gpu host exclude each other: simulated GPUs or the machine's own")
	}
	if o.SimNode != "" {
		if _, err := os.Stat(o.SimBinary); err != nil {
			return fmt.Errorf("looking for the NVML simulator: %w: `make nvml-sim` builds it; --sim-binary names another", err)
		}
		// Without a directory it may be a machine that the simulator knows.
		if _, err := os.Stat(o.SimNode); err != nil && strings.Contains(o.SimNode, "/") {
			return fmt.Errorf("looking for the simulated node's file: %w", err)
		}
	}
	return o.Dir.Check()
}

// checkMachine says everything that the machine lacks. It is a script, because
// users are to read that before anything is compiled.
func (o Options) checkMachine(ctx context.Context) error {
	gpu := "sim"
	if o.HostGPU {
		gpu = "host"
	}
	script := filepath.Join(o.Cache.Source, "../../hack/check.sh")
	out, err := exec.CommandContext(ctx, script, "--gpu", gpu).CombinedOutput()
	if err != nil && len(out) > 0 {
		return errors.New(strings.TrimSpace(string(out)))
	}
	return err
}

// Groups are what a cluster runs and what its clients use.
var Groups = []string{"kubernetes", "etcd", "containerd", "runc", "cni", "workload", "helm"}

// spec builds whatever is missing and returns what to start.
func (o Options) spec(ctx context.Context) (supervisor.Spec, error) {
	spec := supervisor.Spec{Dir: o.Dir, Checkout: o.checkout(), Emulate: o.Emulate}
	names, err := build.Names(Groups)
	if err != nil {
		return spec, err
	}
	if spec.Binaries, err = o.Cache.Build(ctx, build.Groups(), names...); err != nil {
		return spec, err
	}
	if spec.Images, err = assembleImages(spec.Binaries); err != nil {
		return spec, err
	}
	if spec.SimNode, err = absolute(o.SimNode); err != nil {
		return spec, fmt.Errorf("reading the path of the simulated node's file: %w", err)
	}
	switch {
	case o.HostGPU:
		spec.DriverRoot = "/"
	case o.SimNode != "":
		spec.DriverRoot = o.Dir.Driver()
		if spec.Binaries["nvml-sim"], err = filepath.Abs(o.SimBinary); err != nil {
			return spec, fmt.Errorf("reading the path of the NVML simulator: %w", err)
		}
	}
	return spec, nil
}

// checkout is the directory of the project.
func (o Options) checkout() string { return filepath.Join(o.Cache.Source, "../..") }

// CheckRunning reports whether the cluster that runs in Dir is the one that these
// options ask for.
func (o Options) CheckRunning() error {
	running, err := supervisor.LoadSpec(o.Dir)
	if err != nil {
		return err
	}
	simNode, err := absolute(o.SimNode)
	if err != nil {
		return err
	}
	end := "end it with `make cluster-down`, or set MICA_CLUSTER_DIR to another directory for this one"
	switch {
	case running.Checkout != o.checkout():
		return fmt.Errorf("the cluster in %s was started from %s: %s", o.Dir, running.Checkout, end)
	case running.SimNode != simNode || (running.DriverRoot == "/") != o.HostGPU:
		return fmt.Errorf("the cluster in %s has other GPUs (%s): %s", o.Dir, hardware(running), end)
	}
	return nil
}

// absolute makes the path of a file absolute and leaves a name alone.
func absolute(name string) (string, error) {
	if _, err := os.Stat(name); name == "" || err != nil {
		return name, nil
	}
	return filepath.Abs(name)
}

// assembleImages makes the archives that every cluster holds, next to the
// binaries that they are made of: always, because they hold more than that, such
// as this machine's glibc.
func assembleImages(binaries map[string]string) ([]string, error) {
	var archives []string
	for _, recipe := range []image.Recipe{
		{Name: layout.PauseImage, Binaries: []string{binaries["pause"]}},
		{Name: layout.WorkloadImage, Binaries: []string{binaries["workload"]}, Glibc: true},
	} {
		archive := recipe.Binaries[0] + ".tar"
		if err := recipe.Write(archive); err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

// hardware is what a cluster's node has, in a word.
func hardware(spec supervisor.Spec) string {
	switch {
	case spec.SimNode != "":
		return strings.TrimSuffix(filepath.Base(spec.SimNode), ".yaml")
	case spec.DriverRoot == "/":
		return "this machine's own"
	}
	return "none"
}
