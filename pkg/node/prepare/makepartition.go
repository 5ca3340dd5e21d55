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

// enableMIG prepares a GPU for its first partition. Undone, it leaves the GPU as whole
// claims need it, once no claim has a partition of it.
type enableMIG struct {
	gpu    string
	others neighbours
}

// addEnable adds the step once per GPU.
func addEnable(w *work, at spot) {
	job := w.of(at.device().UUID)
	if !slices.ContainsFunc(job.steps, func(s step) bool { _, is := s.(enableMIG); return is }) {
		job.add(at.device().Request, enableMIG{at.device().UUID, at.others})
	}
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
		// The mode of such a board is the administrator's. A mode that a monitor keeps in
		// use does no harm: the next whole claim switches it, or says why it cannot.
		return nil
	}
	return err
}

// makePartition makes the GPU instance of a partition and the compute instance in it, which
// together are the MIG device of a container, unless another share's was adopted. The last
// share destroys it.
type makePartition struct {
	device *journal.Device
	others neighbours
	// triedInstance and triedCompute are set before an attempt, which may have its effect although
	// it fails: an instance that is found later may be this step's own.
	triedInstance, triedCompute bool
}

func addPartition(w *work, at spot) {
	device := at.device()
	earlier := at.record.Devices[:at.index]
	if first := slices.IndexFunc(earlier, func(d journal.Device) bool { return sharesWith(d, *device) }); first >= 0 {
		at.addTo(w, adoption{&earlier[first], device})
		return
	}
	at.addTo(w, &makePartition{device: device, others: at.others})
}

func (s *makePartition) do(ctx context.Context, tools Tools) error {
	if s.device.Exists() {
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
	s.device.Form.InstanceID = found.ID
	made := gpu.MIGDevice{}
	if s.triedCompute && len(found.Devices) > 0 {
		made = found.Devices[0]
	}
	s.triedCompute = true
	if made.UUID == "" {
		if made, err = tools.MIG.CreateComputeInstance(s.device.UUID, found.ID); err != nil {
			return err
		}
	}
	s.device.Form.ComputeID, s.device.PartUUID = made.ComputeID, made.UUID
	return nil
}

// findInstance looks for an instance that an earlier attempt has made after all.
func (s *makePartition) findInstance(mig MIG) (*gpu.Instance, error) {
	if !s.triedInstance {
		return nil, nil //nolint:nilnil // none is an answer
	}
	found, err := mig.InstanceAt(s.device.UUID, s.device.Form.ProfileID, s.device.Form.Start)
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
	place := s.device.Form.Placement
	id, err := tools.MIG.CreateInstance(s.device.UUID, place.ProfileID, place.Start, place.Size)
	if errors.Is(err, nvml.ErrInsufficientResources) {
		relinquish(s.device) // so that undo leaves alone what is there
	}
	return &gpu.Instance{ID: id}, err
}

// endStale ends the daemon of other shares whose partition was destroyed: the new partition
// needs one of that name.
func (s *makePartition) endStale(ctx context.Context, tools Tools) error {
	if !hasStep(*s.device, runDaemon) || tools.Daemons == nil {
		return nil
	}
	daemon := dataOf[client](*s.device, runDaemon).Daemon
	clients, err := s.others.some(func(d journal.Device) bool { return dataOf[client](d, runDaemon).Daemon == daemon })
	if err != nil || len(clients) == 0 {
		return err
	}
	return explain(tools.Daemons.Stop(ctx, daemon))
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
		if needed, err := s.needed(*instance); err != nil || needed {
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
	relinquish(s.device)
	return nil
}

// needed reports whether another claim has a share of the same instance.
func (s *makePartition) needed(instance gpu.Instance) (bool, error) {
	if !s.device.Form.Shared() {
		return false, nil
	}
	sharing, err := s.others.some(func(d journal.Device) bool { return Made(d, s.device.UUID, instance) })
	return len(sharing) > 0, err
}

// adoption takes over the partition of an earlier share of the same claim, which destroys it.
type adoption struct{ from, to *journal.Device }

func (s adoption) do(context.Context, Tools) error {
	adopt(s.to, *s.from)
	return nil
}

func (adoption) undo(context.Context, Tools) error { return nil }
