// Package diagnosis looks at one node with the plugin's own code. The self-test reports what is
// wrong: with the GPUs, with what the node would publish, with what containers would get, and
// with the privileges of the process. On request it prepares and unprepares claims of its own on
// an idle GPU. The bug report gathers the state of the node, without secrets, takes no lock and
// changes nothing. Neither touches hardware but through the rooms below.
package diagnosis

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/podresources"
	"github.com/mica-gpu/mica/pkg/node/prepare"
)

// GPUs are the node's, from its open NVIDIA driver.
type GPUs interface {
	Discover() (node gpu.Node, unreadable []error, err error)
	// Processes lists the processes that compute on a GPU.
	Processes(uuid string) ([]uint32, error)
	Health(uuid string) (health.Level, error)
	// HealthFields lists the driver's answers about the health of a GPU.
	HealthFields(uuid string) ([]nvml.FieldAnswer, error)
}

// Hardware is an open NVIDIA driver.
type Hardware struct {
	GPUs  GPUs
	Edits prepare.Edits
	Tools prepare.Tools
}

// Options are the subjects of a self-test.
type Options struct {
	// Version is Mica's.
	Version string
	// Open opens the NVIDIA driver, which the caller closes.
	Open       func() (Hardware, error)
	Privileges Privileges
	// Directories are written by the plugin.
	Directories []string
	// Hook is the path of the CDI hook that the plugin installs; empty if the hook is on the host.
	Hook string
	// Claims prepares claims with the records and locks of the node's plugin; nil for a
	// self-test that changes nothing.
	Claims Claims
	// Driver is the driver's name.
	Driver string
	// Containers is nil if the plugin ignores device plugins.
	Containers Containers
}

// Privileges are the privileges of a process.
type Privileges struct {
	User int
	// SysAdmin is the capability that the driver requires of an administrator.
	SysAdmin bool
}

// OwnPrivileges returns the privileges of this process.
func OwnPrivileges() Privileges {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return Privileges{User: os.Geteuid(), SysAdmin: err == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0}
}

// Containers lists containers of this node.
type Containers interface {
	// Uses lists the devices that containers hold from device plugins.
	Uses(ctx context.Context) ([]podresources.Use, error)
}

// Run makes all checks, in the order of the report. It leaves out those that an earlier fault
// makes impossible.
func Run(ctx context.Context, options Options) *Report {
	r := &Report{Version: options.Version}
	checkPrivileges(r, options.Privileges)
	checkDirectories(r, options.Directories)
	checkContainers(ctx, r, options.Containers)
	var node gpu.Node
	var unreadable []error
	hardware, err := options.Open()
	if err == nil {
		node, unreadable, err = hardware.GPUs.Discover()
	}
	if err != nil {
		r.add("driver", Failed, err.Error())
		return r
	}
	r.DriverVersion, r.CUDAVersion = node.DriverVersion, node.CUDAVersion
	for _, g := range node.GPUs {
		r.GPUs = append(r.GPUs, describe(g))
	}
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
			r.add(name, Skipped, "it is only tried with --mutate, on an idle GPU")
		}
		return r
	}
	m := mutation{Options: options, hardware: hardware, node: node}
	m.run(ctx, r)
	return r
}
