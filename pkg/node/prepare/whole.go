package prepare

import (
	"context"
	"errors"
	"fmt"

	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// wholeGPU is the preparation of an entire GPU, on which MIG has to be disabled.
type wholeGPU struct{}

func (wholeGPU) steps() []journal.Step { return []journal.Step{journal.DisableMIG} }

// inspect reports whether MIG has to be disabled. Where that takes a reset, a GPU with MIG
// enabled is not offered. One on which it was disabled a moment ago is waited for.
func (wholeGPU) inspect(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error) {
	if device.AdminAccess || len(siblings) > 0 || !g.MIGSwitchable {
		return false, nil
	}
	enabled, err := tools.MIG.MIGEnabled(g.UUID)
	if err != nil {
		return false, err
	}
	if !enabled {
		return false, linked(tools.MIG, g.UUID)
	}
	if some, err := tools.MIG.HasInstances(g.UUID); err != nil || !some {
		return true, err
	}
	instances, err := tools.MIG.Instances(g.UUID)
	if err == nil {
		err = fmt.Errorf("gpu-%d (%s) cannot be used whole: somebody else has made %d MIG instances on it: destroy them, or delete the pod so that it is scheduled again", g.Minor, g.UUID, len(instances))
	}
	return true, err
}

func (wholeGPU) intact(journal.Device, Tools) (bool, error) { return true, nil }

func (wholeGPU) edits(device journal.Device, edits Edits) (cdispec.ContainerEdits, error) {
	return edits.GPU(device.UUID)
}

// disableMIG makes a GPU without partitions usable as a whole, which is how it
// is left when undone, too.
type disableMIG struct{ gpu string }

func (s disableMIG) do(_ context.Context, tools Tools) error {
	enabled, err := tools.MIG.MIGEnabled(s.gpu)
	if err == nil && enabled {
		err = tools.MIG.SetMIG(s.gpu, false)
	}
	if err != nil {
		return err
	}
	return linked(tools.MIG, s.gpu)
}

// linked has its own advice for a GPU whose links are away.
func linked(mig MIG, uuid string) error {
	err := mig.Linked(uuid)
	if errors.Is(err, nvml.ErrRetraining) {
		return explain(err)
	}
	return err
}

func (disableMIG) undo(context.Context, Tools) error { return nil }
