package bugreport

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/driverroot"
	"github.com/mica-gpu/mica/pkg/node/selftest"
)

// GPUs are a node's, as its open NVIDIA driver tells of them.
type GPUs interface {
	Discover() (node gpu.Node, unreadable []error, err error)
	Processes(uuid string) ([]uint32, error)
	Health(uuid string) (health.Level, error)
}

// DriverRoot is where the NVIDIA driver is looked for: below host, which this process sees at local.
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

// where is a file that was looked for. The name to which links lead has the driver's version.
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
	selftest.GPU
	ECC        *bool       `json:"ecc,omitempty"`
	Partitions []partition `json:"partitions,omitempty"`
	// Fabric is "ready" where the GPU needs none.
	Fabric string `json:"fabric"`
	// Processes is how many compute on it, Health what the driver says of it; each is an error
	// where that cannot be read.
	Processes string `json:"processes"`
	Health    string `json:"health"`
}

type partition struct {
	Profile  string   `json:"profile"`
	Instance int      `json:"instance"`
	Slices   string   `json:"memorySlices"`
	Devices  []string `json:"devices,omitempty"`
}

// NVML is what NVIDIA's management library says, read anew. The driver that open opens is left open.
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
			found.GPUs = append(found.GPUs, describe(library, g))
		}
		for _, err := range unreadable {
			found.Unreadable = append(found.Unreadable, err.Error())
		}
		return found, nil
	}}
}

func describe(library GPUs, g gpu.GPU) device {
	d := device{GPU: selftest.Describe(g), ECC: g.ECCEnabled, Fabric: "ready"}
	if g.Fabric != gpu.FabricReady {
		d.Fabric = string(g.Fabric)
	}
	for _, instance := range g.Instances {
		d.Partitions = append(d.Partitions, describePartition(g, instance))
	}
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

func describePartition(g gpu.GPU, instance gpu.Instance) partition {
	p := partition{
		Profile: fmt.Sprintf("profile %d", instance.ProfileID), Instance: instance.ID,
		Slices: fmt.Sprintf("%d-%d", instance.Start, instance.Start+instance.Size-1),
	}
	if i := slices.IndexFunc(g.Profiles, func(profile gpu.Profile) bool { return profile.ID == instance.ProfileID }); i >= 0 {
		p.Profile = g.Profiles[i].Name
	}
	for _, mig := range instance.Devices {
		p.Devices = append(p.Devices, mig.UUID)
	}
	return p
}

// Selftest is a report of a self-test that changes nothing, less what other sections have.
func Selftest(run func(context.Context) (*selftest.Report, error)) Section {
	return Section{"selftest", func(ctx context.Context) (any, error) {
		report, err := run(ctx)
		if err != nil {
			return nil, err
		}
		checks := make([]string, len(report.Checks))
		for i, check := range report.Checks {
			checks[i] = fmt.Sprintf("%s %s: %s", check.Name, check.Status, strings.Join(check.Findings, "; "))
		}
		return checks, nil
	}}
}
