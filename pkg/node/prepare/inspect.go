package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// inspect compares what is planned with the GPUs before anything is done to them. It
// tells whether they have to be changed. What a share of the same device has already
// is taken over into the record.
func (p *Preparer) inspect(ctx context.Context, record *journal.Record, node *Node, others neighbours) (effects bool, err error) {
	for i := range record.Devices {
		device := &record.Devices[i]
		var change bool
		err := persist(ctx, func() (err error) {
			siblings, err := siblingsOf(record, i, others)
			if err != nil {
				return err
			}
			change, err = inspectDevice(device, node.Pool.Shapes[device.Device].Physical(), siblings, node.Tools)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("claim %s, request %q: %w", claimIn(*record), device.Request, advised(err, device.UUID))
		}
		effects = effects || change
	}
	return effects, nil
}

func inspectDevice(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error) {
	shape, err := preparationOf(device.Shape)
	if err != nil {
		return false, err
	}
	if change, err = shape.inspect(device, g, siblings, tools); err != nil {
		return false, err
	}
	shares, err := inspectSharing(device, siblings, tools)
	return change || shares, err
}

// inspectSharing tells whether the time-slice, the compute mode or a daemon has to be
// changed. The compute mode from before MPS is that which the first share found.
func inspectSharing(device *journal.Device, siblings []journal.Device, tools Tools) (change bool, err error) {
	if device.Interval != "" {
		change = !slices.ContainsFunc(siblings, func(d journal.Device) bool { return d.Interval == device.Interval })
	}
	if !device.Served() {
		return change, inspectTurns(device, siblings, tools.Modes)
	}
	if tools.Daemons == nil {
		return false, errNoSupervisor
	}
	client := slices.IndexFunc(siblings, func(d journal.Device) bool { return d.MPS.Daemon == device.MPS.Daemon })
	if client >= 0 {
		device.MPS.ComputeMode = siblings[client].MPS.ComputeMode
		return change, nil
	}
	if device.Form().Entire() {
		device.MPS.ComputeMode, err = tools.Modes.ComputeMode(device.UUID)
	}
	return true, withoutModes(err)
}

// inspectTurns finds a GPU that lets the processes of several claims in. A mode of an
// administrator's that does not would fail all but the first with an error of CUDA.
func inspectTurns(device *journal.Device, siblings []journal.Device, modes Modes) error {
	if device.Shares == 0 || !device.Form().Entire() || device.AdminAccess || len(siblings) > 0 {
		return nil
	}
	mode, err := modes.ComputeMode(device.UUID)
	switch {
	case errors.Is(err, nvml.ErrNotSupported):
		return nil // it has none that could be in the way
	case err == nil && mode != nvml.DefaultComputeMode:
		err = fmt.Errorf("%s cannot be shared: somebody has set the compute mode of %s to %s, which keeps other processes out: set it back (nvidia-smi -i %s -c 0), or delete the pod so that it is scheduled again", device.Device, device.UUID, mode, device.UUID)
	}
	return err
}

// intact tells whether all partitions that the record's claim was given still
// exist. Without a driver there is nobody to ask.
func (p *Preparer) intact(ctx context.Context, record journal.Record) (intact bool, err error) {
	node := p.node.Load()
	if node == nil {
		return true, nil
	}
	for _, device := range record.Devices {
		if device.AdminAccess {
			continue
		}
		shape, err := preparationOf(device.Shape)
		if err != nil {
			return false, fmt.Errorf("claim %s, request %q: %w", claimIn(record), device.Request, err)
		}
		err = persist(ctx, func() (err error) {
			intact, err = shape.intact(device, node.Tools)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("claim %s, request %q: %w", claimIn(record), device.Request, advised(err, device.UUID))
		}
		if !intact {
			return false, nil
		}
	}
	return true, nil
}

// advised adds what to do about an answer of the driver's; what was concluded from
// its answers says so itself.
func advised(err error, uuid string) error {
	if answer, own := new(nvml.Error), (explained{}); errors.As(err, &own) || !errors.As(err, &answer) {
		return err
	}
	return fmt.Errorf("%w: %s", err, advice(err, uuid))
}
