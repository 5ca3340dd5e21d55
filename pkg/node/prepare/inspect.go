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

// inspect compares the plan with the GPUs before anything is done to them. It
// tells whether they have to be changed. What a share of the same device has already
// is taken over into the record.
func (p *Preparer) inspect(ctx context.Context, record *journal.Record, plan Plan, node *Node, others neighbours) (effects bool, err error) {
	for i, assignment := range plan.Assignments {
		device := &record.Devices[i]
		var change bool
		err := persist(ctx, func() (err error) {
			siblings, err := siblingsOf(record, i, others)
			if err != nil {
				return err
			}
			change, err = inspectDevice(device, assignment, siblings, node.Tools)
			return err
		})
		if err != nil {
			return false, fmt.Errorf("claim %s, request %q: %w", plan.Claim, assignment.Request, advised(err, device.UUID))
		}
		effects = effects || change
	}
	return effects, nil
}

// siblingsOf are the other shares of the device of a record's request: those of the
// same claim first.
func siblingsOf(record *journal.Record, i int, others neighbours) ([]journal.Device, error) {
	device := record.Devices[i]
	if device.Shares == 0 || device.AdminAccess {
		return nil, nil
	}
	var siblings []journal.Device
	for _, earlier := range record.Devices[:i] {
		if sharesWith(earlier, device) {
			siblings = append(siblings, earlier)
		}
	}
	elsewhere, err := others.some(func(d journal.Device) bool { return sharesWith(d, device) })
	return append(siblings, elsewhere...), err
}

func inspectDevice(device *journal.Device, assignment Assignment, siblings []journal.Device, tools Tools) (change bool, err error) {
	switch shape := shared(assignment.Shape).(type) {
	case gpu.Whole:
		if !assignment.Admin && len(siblings) == 0 {
			change, err = inspectWhole(shape, tools.MIG)
		}
	case gpu.Partition:
		change, err = inspectSharedPartition(device, siblings, tools.MIG)
	case gpu.Static:
		err = inspectStatic(device, tools.MIG)
	}
	if err != nil {
		return false, err
	}
	shares, err := inspectSharing(device, siblings, tools)
	return change || shares, err
}

// inspectSharedPartition adopts the partition of another share where there is one. One
// that somebody has destroyed is made anew.
func inspectSharedPartition(device *journal.Device, siblings []journal.Device, mig MIG) (change bool, err error) {
	for _, sibling := range siblings {
		if !ours(sibling) {
			continue
		}
		if sibling.Partition.UUID == "" {
			return true, nil // it is made for an earlier request of the same claim
		}
		there, err := exists(sibling, mig)
		if err != nil {
			return false, err
		}
		if there {
			adopted := *sibling.Partition
			device.Partition = &adopted
			return false, nil
		}
	}
	return !device.AdminAccess, inspectPartition(device, mig)
}

// inspectSharing tells whether the time-slice, the compute mode or a daemon has to be
// changed. The compute mode from before MPS is that which the first share found.
func inspectSharing(device *journal.Device, siblings []journal.Device, tools Tools) (change bool, err error) {
	if device.Interval != "" {
		change = !slices.ContainsFunc(siblings, func(d journal.Device) bool { return d.Interval == device.Interval })
	}
	if device.MPS == nil {
		return change, inspectTurns(device, siblings, tools.Modes)
	}
	if tools.Daemons == nil {
		return false, errNoSupervisor
	}
	client := slices.IndexFunc(siblings, func(d journal.Device) bool { return d.MPS != nil && d.MPS.Daemon == device.MPS.Daemon })
	if client >= 0 {
		device.MPS.ComputeMode = siblings[client].MPS.ComputeMode
		return change, nil
	}
	if device.Partition == nil {
		device.MPS.ComputeMode, err = tools.Modes.ComputeMode(device.UUID)
	}
	return true, withoutModes(err)
}

// inspectTurns finds a GPU that lets the processes of several claims in. A mode of an
// administrator's that does not would fail all but the first with an error of CUDA.
func inspectTurns(device *journal.Device, siblings []journal.Device, modes Modes) error {
	if device.Shares == 0 || device.Partition != nil || device.AdminAccess || len(siblings) > 0 {
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

// advised adds what to do about an answer of the driver's; what was concluded from
// its answers says so itself.
func advised(err error, uuid string) error {
	if answer, own := new(nvml.Error), (explained{}); errors.As(err, &own) || !errors.As(err, &answer) {
		return err
	}
	return fmt.Errorf("%w: %s", err, advice(err, uuid))
}

// inspectWhole tells whether MIG has to be disabled for a whole GPU. Where that
// takes a reset, a GPU with MIG enabled is not offered.
func inspectWhole(shape gpu.Whole, mig MIG) (change bool, err error) {
	if !shape.GPU.MIGSwitchable {
		return false, nil
	}
	enabled, err := mig.MIGEnabled(shape.GPU.UUID)
	if err != nil || !enabled {
		return false, err
	}
	instances, err := mig.Instances(shape.GPU.UUID)
	if err == nil && len(instances) > 0 {
		err = fmt.Errorf("%s (%s) cannot be used whole: somebody else has made %d MIG instances on it: destroy them, or delete the pod so that it is scheduled again", shape.Name(), shape.GPU.UUID, len(instances))
	}
	return true, err
}

// inspectPartition finds the place of a partition free. For who only looks at
// one, it finds the partition that is there, if any.
func inspectPartition(device *journal.Device, mig MIG) error {
	partition := device.Partition
	found, err := mig.InstanceAt(device.UUID, partition.ProfileID, partition.Start)
	if err != nil || found == nil {
		return err
	}
	if !device.AdminAccess {
		return fmt.Errorf("the place of %s on %s is taken by GPU instance %d, which somebody else has made: destroy it, or delete the pod so that it is scheduled again", device.Device, device.UUID, found.ID)
	}
	if len(found.Devices) > 0 {
		partition.InstanceID, partition.ComputeID, partition.UUID = found.ID, found.Devices[0].ComputeID, found.Devices[0].UUID
	}
	return nil
}

// inspectStatic makes sure that a partition of somebody else's is still the one
// that was published.
func inspectStatic(device *journal.Device, mig MIG) error {
	there, err := exists(*device, mig)
	if err == nil && !there {
		err = fmt.Errorf("the MIG device %s of %s on %s is gone: whoever made it has destroyed it; delete the pod so that it is scheduled again", device.Partition.UUID, device.Device, device.UUID)
	}
	return err
}

// exists tells whether a MIG device is where its record says. A list, which others
// change while it is read, is not believed when it lacks the device.
func exists(device journal.Device, mig MIG) (bool, error) {
	partition := device.Partition
	found, err := mig.InstanceAt(device.UUID, partition.ProfileID, partition.Start)
	if err != nil || found == nil {
		return false, err
	}
	if slices.ContainsFunc(found.Devices, func(d gpu.MIGDevice) bool { return d.UUID == partition.UUID }) {
		return true, nil
	}
	uuid, err := mig.DeviceAt(device.UUID, partition.InstanceID, partition.ComputeID)
	return err == nil && uuid == partition.UUID, err
}

// intact tells whether all partitions that the record's claim was given still
// exist. Without a driver there is nobody to ask.
func (p *Preparer) intact(ctx context.Context, record journal.Record) (intact bool, err error) {
	node := p.node.Load()
	if node == nil {
		return true, nil
	}
	for _, device := range record.Devices {
		if device.AdminAccess || device.Partition == nil {
			continue
		}
		err := persist(ctx, func() (err error) {
			intact, err = exists(device, node.MIG)
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
