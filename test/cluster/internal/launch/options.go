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

// Check says whether the options go together.
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

// groups are what a cluster runs and what its clients use.
var groups = []string{"kubernetes", "etcd", "containerd", "runc", "cni", "workload", "helm"}

// spec builds whatever is missing and returns what to start.
func (o Options) spec(ctx context.Context) (supervisor.Spec, error) {
	spec := supervisor.Spec{Dir: o.Dir, Binaries: map[string]string{}}
	wanted := map[string]bool{}
	for _, name := range groups {
		wanted[name] = true
	}
	for _, group := range build.Groups() {
		if !wanted[group.Name] {
			continue
		}
		dir, err := o.Cache.Group(ctx, group)
		if err != nil {
			return spec, err
		}
		for _, name := range group.Names() {
			spec.Binaries[name] = filepath.Join(dir, name)
		}
	}
	var err error
	if spec.Images, err = assembleImages(spec.Binaries); err != nil {
		return spec, err
	}
	switch {
	case o.HostGPU:
		spec.DriverRoot = "/"
	case o.SimNode != "":
		spec.DriverRoot = o.Dir.Driver()
		if spec.SimNode, err = absolute(o.SimNode); err != nil {
			return spec, fmt.Errorf("reading the path of the simulated node's file: %w", err)
		}
		if spec.Binaries["nvml-sim"], err = filepath.Abs(o.SimBinary); err != nil {
			return spec, fmt.Errorf("reading the path of the NVML simulator: %w", err)
		}
	}
	return spec, nil
}

// absolute makes the path of a file absolute and leaves a name alone.
func absolute(name string) (string, error) {
	if _, err := os.Stat(name); err != nil {
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
