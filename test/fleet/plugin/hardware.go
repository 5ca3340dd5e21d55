package plugin

import (
	"context"
	"errors"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/driver"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/node/reset"
	"github.com/mica-gpu/mica/pkg/node/sample"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/nodes"
)

// hardware is the NVML of a simulated machine, in this process.
type hardware struct {
	*nvml.Library

	machine *model.Machine
	session *model.Session
}

// open boots the ready-made machine. Identities such as UUIDs derive from the node's name, so that machines of one type
// differ.
func open(machine, node string) (*hardware, error) {
	file, err := nodes.Load(machine)
	if err != nil {
		return nil, fmt.Errorf("node %s: %w", node, err)
	}
	file.Name = node
	loaded, err := model.Load(file)
	if err != nil {
		return nil, fmt.Errorf("node %s, machine %s: %w", node, machine, err)
	}
	session := loaded.NewSession()
	library, err := nvml.New(session, fixture.Sysfs(file))
	if err != nil {
		session.Close()
		return nil, err
	}
	return &hardware{library, loaded, session}, nil
}

func (h *hardware) close() error {
	defer h.session.Close()
	return h.Close()
}

// Reset implements reset.Program.
func (h *hardware) Reset(ctx context.Context, uuid string) error {
	return h.machine.ResetByUUID(ctx, uuid)
}

// noContainers are the edits of a node without containers.
type noContainers struct{}

var errNoContainers = errors.New("this node has no containers: kwok only reports that its pods run")

func (noContainers) Common() (cdispec.ContainerEdits, error) {
	return cdispec.ContainerEdits{}, errNoContainers
}

func (noContainers) GPU(string) (cdispec.ContainerEdits, error) {
	return cdispec.ContainerEdits{}, errNoContainers
}

func (noContainers) Partition(string, int, int) (cdispec.ContainerEdits, error) {
	return cdispec.ContainerEdits{}, errNoContainers
}

// Fit implements prepare.Edits. The driver stays the same.
func (noContainers) Fit(cdispec.Spec) (bool, error) { return true, nil }

// opener is Options.Open of the driver.
func opener(machine, node string) func(context.Context) (driver.Hardware, error) {
	return func(context.Context) (driver.Hardware, error) {
		opened, err := open(machine, node)
		if err != nil {
			return driver.Hardware{}, err
		}
		return driver.Hardware{
			GPUs: opened, Edits: noContainers{}, Tools: prepare.Tools{MIG: opened, Modes: opened},
			Health: opened,
			Resets: reset.Hardware{GPUs: opened, Program: opened},
			Meter:  func(uuid string) sample.Meter { return opened.Meter(uuid) },
			Check:  opened.CheckFile,
			Close:  opened.close,
		}, nil
	}
}
