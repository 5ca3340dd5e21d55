// Package selftest looks at one node with the plugin's own eyes and reports what it finds:
// which GPUs, what would be published of them, what their containers would get, and whether
// this process may do what the plugin does. Asked to, it prepares and unprepares claims of its
// own on a GPU that nobody uses, on the same way as kubelet's. It reads and changes hardware only
// through the rooms below it, and never talks to the API server.
package selftest

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/podresources"
	"github.com/mica-gpu/mica/pkg/node/prepare"
)

// GPUs are a node's, as its open NVIDIA driver tells of them.
type GPUs interface {
	Discover() (node gpu.Node, unreadable []error, err error)
	// Processes are those that compute on a GPU.
	Processes(uuid string) ([]uint32, error)
	// HealthFields are how the driver answers about the health of a GPU.
	HealthFields(uuid string) ([]nvml.FieldAnswer, error)
}

// Hardware is an open NVIDIA driver.
type Hardware struct {
	GPUs  GPUs
	Edits prepare.Edits
	Tools prepare.Tools
}

// Options are what a self-test looks at.
type Options struct {
	// Version is Mica's.
	Version string
	// Open opens the NVIDIA driver, which the caller closes.
	Open func() (Hardware, error)
	// Proc is procfs.
	Proc fs.FS
	// Directories are those that the plugin writes into.
	Directories []string
	// Hook is the CDI hook that the plugin installs; empty for one that only the host sees.
	Hook string
	// Claims prepares claims with the records and locks of the node's plugin; nil for a
	// self-test that changes nothing.
	Claims Claims
	// Driver is the driver's name.
	Driver string
	// Containers are asked for what a device plugin has left in use; nil where the plugin does not.
	Containers Containers
}

// Containers are those of this node.
type Containers interface {
	// Uses are the devices that containers have from device plugins.
	Uses(ctx context.Context) ([]podresources.Use, error)
}

// Run looks at everything, in the order of the report. What cannot be looked at because of an
// earlier fault is left out.
func Run(ctx context.Context, options Options) *Report {
	r := &Report{Version: options.Version}
	checkPrivileges(r, options.Proc)
	checkDirectories(r, options.Directories)
	checkContainers(ctx, r, options.Containers)
	hardware, err := options.Open()
	if err != nil {
		r.add("driver", Failed, err.Error())
		return r
	}
	node, unreadable, err := hardware.GPUs.Discover()
	if err != nil {
		r.add("driver", Failed, err.Error())
		return r
	}
	r.describe(node)
	r.add("driver", OK, fmt.Sprintf("version %s answers", node.DriverVersion))
	checkGPUs(r, node, unreadable)
	if len(node.GPUs) == 0 {
		return r
	}
	checkDevices(r, node)
	checkCatalogue(r, node)
	checkFabric(r, node)
	checkHealth(r, node, hardware.GPUs)
	checkEdits(r, node, hardware, options.Hook)
	if options.Claims == nil {
		for _, name := range []string{"partition", "time-slice", "MPS"} {
			r.add(name, Skipped, "it is only tried with --mutate, on a GPU that nobody uses")
		}
		return r
	}
	m := mutation{Options: options, hardware: hardware, node: node}
	m.run(ctx, r)
	return r
}

var migModes = map[gpu.MIGMode]string{gpu.MIGUnsupported: "unsupported", gpu.MIGDisabled: "disabled", gpu.MIGEnabled: "enabled"}

func (r *Report) describe(node gpu.Node) {
	r.DriverVersion, r.CUDAVersion = node.DriverVersion, node.CUDAVersion
	for _, g := range node.GPUs {
		r.GPUs = append(r.GPUs, Describe(g))
	}
}

// Describe is a GPU as reports have it.
func Describe(g gpu.GPU) GPU {
	return GPU{
		Index: g.Index, Minor: g.Minor, UUID: g.UUID, ProductName: g.ProductName, ComputeCapability: g.ComputeCapability,
		MemoryMiB: g.MemoryBytes >> 20, PCIBusID: g.PCIBusID, NUMANode: g.NUMANode, NVLinkGroup: g.NVLinkGroup, MIG: migModes[g.MIG],
	}
}

// counted is a set of values, with how often each occurs, in the order in which they came.
type counted struct {
	order []string
	times map[string]int
}

func (c *counted) add(value string) {
	if c.times == nil {
		c.times = map[string]int{}
	}
	if c.times[value]++; c.times[value] == 1 {
		c.order = append(c.order, value)
	}
}

// String is such as "8 gpu, 200 mig".
func (c *counted) String() string {
	parts := make([]string, len(c.order))
	for i, value := range c.order {
		parts[i] = fmt.Sprintf("%d %s", c.times[value], value)
	}
	return strings.Join(parts, ", ")
}
