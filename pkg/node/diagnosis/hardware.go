package diagnosis

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
)

// DriverRoot shows where the plugin looks for the NVIDIA driver: below host, which this process sees
// at local.
func DriverRoot(host, local, machine string) Section {
	return Section{"driverRoot", func(context.Context) (any, error) {
		found := map[string]string{"onHost": host, "inContainer": local, "devicesBelow": driverroot.Devices(local, machine)}
		if hint := driverroot.Hint(host, local, "/proc"); hint != "" {
			found["hint"] = hint
		}
		for _, name := range []string{"libnvidia-ml.so.1", "libcuda.so.1"} {
			found[name] = where(driverroot.Library(local, name))
		}
		for _, name := range []string{"nvidia-smi", "nvidia-cuda-mps-control"} {
			found[name] = where(driverroot.Program(local, name))
		}
		return found, nil
	}}
}

// where returns a file's path behind its links: its name has the driver's version.
func where(path string, found bool) string {
	if !found {
		return "missing"
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

type device struct {
	GPU
	// Processes is their number, Health the driver's answer; each is an error if it cannot be read.
	Processes string `json:"processes"`
	Health    string `json:"health"`
}

// NVML shows what NVIDIA's management library reports now. It leaves the driver open.
func NVML(open func() (GPUs, error)) Section {
	return Section{"nvml", func(context.Context) (any, error) {
		library, err := open()
		if err != nil {
			return nil, err
		}
		node, unreadable, err := library.Discover()
		if err != nil {
			return nil, err
		}
		found := struct {
			DriverVersion string   `json:"driverVersion"`
			CUDAVersion   string   `json:"cudaVersion"`
			GPUs          []device `json:"gpus"`
			Unreadable    []string `json:"unreadable,omitempty"`
		}{DriverVersion: node.DriverVersion, CUDAVersion: node.CUDAVersion, GPUs: []device{}}
		for _, g := range node.GPUs {
			found.GPUs = append(found.GPUs, describeLive(library, g))
		}
		for _, err := range unreadable {
			found.Unreadable = append(found.Unreadable, err.Error())
		}
		return found, nil
	}}
}

func describeLive(library GPUs, g gpu.GPU) device {
	d := device{GPU: describe(g)}
	if processes, err := library.Processes(g.UUID); err != nil {
		d.Processes = err.Error()
	} else {
		d.Processes = fmt.Sprint(len(processes))
	}
	if level, err := library.Health(g.UUID); err != nil {
		d.Health = err.Error()
	} else {
		d.Health = fmt.Sprintf("recovery action %v, row remap pending %t, row remap failed %t", level.Action, level.RemapPending, level.RemapFailed)
	}
	return d
}

// Selftest shows the checks of a self-test that changes nothing.
func Selftest(run func(context.Context) *Report) Section {
	return Section{"selftest", func(ctx context.Context) (any, error) {
		report := run(ctx)
		checks := make([]string, len(report.Checks))
		for i, check := range report.Checks {
			checks[i] = fmt.Sprintf("%s %s: %s", check.Name, check.Status, strings.Join(check.Findings, "; "))
		}
		return checks, nil
	}}
}
