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

// wholeGPU prepares an entire GPU, on which MIG has to be disabled.
type wholeGPU struct{}

func (wholeGPU) steps() []string { return []string{disableMIGStep} }

// inspect reports whether MIG has to be disabled. A GPU with MIG enabled is not offered if
// that takes a reset. inspect waits for the NVLinks of a GPU on which MIG was just disabled.
func (wholeGPU) inspect(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error) {
	if device.AdminAccess || len(siblings) > 0 {
		return false, nil
	}
	if device.Form.Shared() && !device.Form.Served() {
		if err := admitsProcesses(device, tools.Modes); err != nil {
			return false, err
		}
	}
	if !g.MIGSwitchable {
		return false, nil
	}
	enabled, err := tools.MIG.MIGEnabled(g.UUID)
	if err != nil {
		return false, err
	}
	if !enabled {
		return false, linked(tools.MIG, g.UUID)
	}
	some, err := tools.MIG.HasInstances(g.UUID)
	if err == nil && some {
		err = fmt.Errorf("gpu-%d (%s) cannot be used whole: it has MIG instances that Mica did not make: destroy them, or delete the pod so that it is scheduled again", g.Minor, g.UUID)
	}
	return true, err
}

// admitsProcesses refuses shares of a GPU with an exclusive compute mode, which would fail
// all claims but the first with an error of CUDA.
func admitsProcesses(device *journal.Device, modes Modes) error {
	mode, err := modes.ComputeMode(device.UUID)
	switch {
	case errors.Is(err, nvml.ErrNotSupported):
		return nil // without a mode
	case err == nil && mode != nvml.DefaultComputeMode:
		err = fmt.Errorf("%s cannot be shared: an administrator has set the compute mode of %s to %s, which keeps other processes out: set it back (nvidia-smi -i %s -c 0), or delete the pod so that it is scheduled again", device.Device, device.UUID, mode, device.UUID)
	}
	return err
}

func (wholeGPU) intact(journal.Device, Tools) (bool, error) { return true, nil }

func (wholeGPU) edits(device journal.Device, edits Edits) (cdispec.ContainerEdits, error) {
	return edits.GPU(device.UUID)
}

// disableMIG makes a GPU without partitions usable as a whole. Undone, it leaves the GPU so.
type disableMIG struct{ gpu string }

func addDisable(w *work, at spot) { at.addTo(w, disableMIG{at.device().UUID}) }

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

func (disableMIG) undo(context.Context, Tools) error { return nil }

// linked keeps NVML's own advice for a GPU whose links are away.
func linked(mig MIG, uuid string) error {
	err := mig.Linked(uuid)
	if errors.Is(err, nvml.ErrRetraining) {
		return explain(err)
	}
	return err
}
