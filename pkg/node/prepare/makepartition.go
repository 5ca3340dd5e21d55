package prepare

import (
	"context"
	"errors"
	"fmt"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// enableMIG prepares a GPU for its first partition. Undone, it leaves the GPU as
// whole claims need it, once nobody has a partition of it.
type enableMIG struct {
	gpu    string
	others neighbours
}

func (s enableMIG) do(_ context.Context, tools Tools) error {
	enabled, err := tools.MIG.MIGEnabled(s.gpu)
	if err != nil || enabled {
		return err
	}
	return tools.MIG.SetMIG(s.gpu, true)
}

func (s enableMIG) undo(_ context.Context, tools Tools) error {
	partitions, err := s.others.some(func(d journal.Device) bool { return ours(d) && d.UUID == s.gpu || d.Newer && d.On(s.gpu) })
	if err != nil || len(partitions) > 0 {
		return err
	}
	some, err := tools.MIG.HasInstances(s.gpu)
	if errors.Is(err, nvml.ErrNotSupported) {
		return nil // MIG is not enabled
	}
	if err != nil || some {
		return err
	}
	err = tools.MIG.SetMIG(s.gpu, false)
	if errors.Is(err, nvml.ErrResetRequired) || errors.Is(err, nvml.ErrInUse) {
		// The mode of such a board is the administrator's, and one that a
		// monitor keeps in use costs nobody anything: the next whole claim
		// switches it, or says why it cannot.
		return nil
	}
	return err
}

// makePartition makes the GPU instance of a partition and the compute instance in it, which
// together are the MIG device of a container, unless that of another share was adopted. The
// last of the shares unmakes it.
type makePartition struct {
	device *journal.Device
	others neighbours
	// triedInstance and triedCompute tell that what is found may be what was made.
	triedInstance, triedCompute bool
}

func (s *makePartition) do(ctx context.Context, tools Tools) error {
	partition := &s.device.Partition
	if partition.UUID != "" {
		return nil // adopted
	}
	found, err := s.findInstance(tools.MIG)
	if err != nil {
		return err
	}
	if found == nil {
		if found, err = s.createInstance(ctx, tools); err != nil {
			return err
		}
	}
	partition.InstanceID = found.ID
	made := gpu.MIGDevice{}
	if s.triedCompute && len(found.Devices) > 0 {
		made = found.Devices[0]
	}
	s.triedCompute = true
	if made.UUID == "" {
		if made, err = tools.MIG.CreateComputeInstance(s.device.UUID, partition.InstanceID); err != nil {
			return err
		}
	}
	partition.ComputeID, partition.UUID = made.ComputeID, made.UUID
	return nil
}

// findInstance looks for what an earlier attempt has made after all.
func (s *makePartition) findInstance(mig MIG) (*gpu.Instance, error) {
	if !s.triedInstance {
		return nil, nil //nolint:nilnil // none is an answer
	}
	found, err := mig.InstanceAt(s.device.UUID, s.device.Partition.ProfileID, s.device.Partition.Start)
	if err == nil && found == nil && s.triedCompute {
		err = fmt.Errorf("the GPU instance that was made for %s is gone: %w", s.device.Device, nvml.ErrNotFound)
	}
	return found, err
}

func (s *makePartition) createInstance(ctx context.Context, tools Tools) (*gpu.Instance, error) {
	if err := s.endStale(ctx, tools); err != nil {
		return nil, err
	}
	s.triedInstance = true
	partition := &s.device.Partition
	id, err := tools.MIG.CreateInstance(s.device.UUID, partition.ProfileID, partition.Start, partition.Size)
	if errors.Is(err, nvml.ErrInsufficientResources) {
		partition.Foreign = true // whatever is there, so that undo leaves it alone
	}
	return &gpu.Instance{ID: id}, err
}

// endStale ends the daemon of other shares whose partition somebody has destroyed: one
// of that name is needed for the partition that takes its place.
func (s *makePartition) endStale(ctx context.Context, tools Tools) error {
	if !s.device.Served() {
		return nil
	}
	clients, err := s.others.some(func(d journal.Device) bool { return d.MPS.Daemon == s.device.MPS.Daemon })
	if err != nil || len(clients) == 0 || tools.Daemons == nil {
		return err
	}
	return explain(tools.Daemons.Stop(ctx, s.device.MPS.Daemon))
}

func (s *makePartition) undo(_ context.Context, tools Tools) error {
	if !ours(*s.device) {
		return nil
	}
	instance, err := ownInstance(tools.MIG, s.device)
	if err != nil {
		return err
	}
	if instance != nil {
		if needed, err := needed(*s.device, *instance, s.others); err != nil || needed {
			return err
		}
		for _, made := range instance.Devices {
			if err := tools.MIG.DestroyComputeInstance(s.device.UUID, instance.ID, made.ComputeID); err != nil {
				return err
			}
		}
		if err := tools.MIG.DestroyInstance(s.device.UUID, instance.ID); err != nil {
			return err
		}
	}
	relinquish(&s.device.Partition)
	return nil
}

// relinquish notes that nothing of ours is in the place of a partition any more:
// what is found there later is somebody else's.
func relinquish(partition *journal.Partition) {
	partition.Foreign, partition.UUID, partition.InstanceID, partition.ComputeID = true, "", 0, 0
}

// needed tells whether another claim has a share of the same instance.
func needed(device journal.Device, instance gpu.Instance, others neighbours) (bool, error) {
	if device.Shares == 0 {
		return false, nil
	}
	sharing, err := others.some(func(d journal.Device) bool { return Made(d, device.UUID, instance) })
	return len(sharing) > 0, err
}

// adopt takes over the partition that was made for an earlier share of the same claim,
// with which it is unmade.
type adopt struct{ from, to *journal.Device }

func (s adopt) do(context.Context, Tools) error {
	s.to.Partition = s.from.Partition
	return nil
}

func (adopt) undo(context.Context, Tools) error { return nil }

// ownInstance finds what was made for a recorded device, nil when it is gone. Its MIG device is
// asked for by its IDs. Where that is not there, there may be an instance without one, which is
// looked for in the place.
func ownInstance(mig MIG, device *journal.Device) (*gpu.Instance, error) {
	partition := device.Partition
	there, err := exists(*device, mig)
	if err != nil {
		return nil, err
	}
	if there {
		return &gpu.Instance{
			ID: partition.InstanceID, ProfileID: partition.ProfileID, Start: partition.Start, Size: partition.Size,
			Devices: []gpu.MIGDevice{{ComputeID: partition.ComputeID, UUID: partition.UUID}},
		}, nil
	}
	instance, err := mig.InstanceAt(device.UUID, partition.ProfileID, partition.Start)
	if err != nil || instance == nil || !isInstance(partition, *instance) {
		return nil, err
	}
	return instance, nil
}
