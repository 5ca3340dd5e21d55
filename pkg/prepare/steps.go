package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/journal"
	"github.com/mica-gpu/mica/pkg/nvml"
)

// MIG makes and unmakes partitions. GPUs are named by UUID. Errors are those of
// pkg/nvml; after one that does not say why, the effect may have happened.
type MIG interface {
	MIGEnabled(uuid string) (bool, error)
	// SetMIG is nvml.ErrResetRequired where it would not take effect at once.
	SetMIG(uuid string, enabled bool) error
	// Instances are all GPU instances, whoever made them.
	Instances(uuid string) ([]gpu.Instance, error)
	// InstanceAt is nil where there is none.
	InstanceAt(uuid string, profileID, start int) (*gpu.Instance, error)
	// DeviceAt is the UUID of a MIG device, empty where there is none.
	DeviceAt(uuid string, instance, compute int) (string, error)
	CreateInstance(uuid string, profileID, start, size int) (instance int, err error)
	CreateComputeInstance(uuid string, instance int) (gpu.MIGDevice, error)
	// What is to be destroyed may be gone already.
	DestroyComputeInstance(uuid string, instance, compute int) error
	DestroyInstance(uuid string, instance int) error
}

// step is one effect on a GPU, whose lock the caller holds. Both methods may be
// repeated, and undo needs nothing but the record that the step was made from:
// it finds the effect, a part of it, or nothing.
type step interface {
	do(mig MIG) error
	undo(mig MIG) error
}

// job is the steps on one GPU, in their order.
type job struct {
	gpu   string
	steps []step
	// request is where errors say that it went wrong.
	requests []string
}

// jobs are the steps that a record with effects speaks of. They write what they
// learn into its devices. Whether another claim has a partition of a GPU is
// asked of shared.
func jobs(record *journal.Record, shared func(uuid string) (bool, error)) []*job {
	var all []*job
	of := func(uuid string) *job {
		if i := slices.IndexFunc(all, func(j *job) bool { return j.gpu == uuid }); i >= 0 {
			return all[i]
		}
		all = append(all, &job{gpu: uuid})
		return all[len(all)-1]
	}
	for i := range record.Devices {
		device := &record.Devices[i]
		if device.AdminAccess || handedOut(device.Partition) {
			continue
		}
		j := of(device.UUID)
		if device.Partition == nil {
			j.add(device.Request, disableMIG{device.UUID})
			continue
		}
		if len(j.steps) == 0 {
			j.add(device.Request, enableMIG{device.UUID, shared})
		}
		j.add(device.Request, &makeInstance{device: device})
		j.add(device.Request, &makeCompute{device: device})
	}
	return all
}

// handedOut tells whether a partition was somebody else's from the beginning. One
// whose place turned out to be somebody else's has no UUID: MIG may have been
// enabled for it.
func handedOut(partition *journal.Partition) bool {
	return partition != nil && partition.Foreign && partition.UUID != ""
}

func (j *job) add(request string, s step) {
	j.requests = append(j.requests, request)
	j.steps = append(j.steps, s)
}

// doAll carries out the jobs, those of different GPUs in parallel. What can pass
// is tried again until ctx ends.
func doAll(ctx context.Context, all []*job, mig MIG) error {
	return parallelly(all, func(j *job) error {
		for i, s := range j.steps {
			if err := persist(ctx, func() error { return s.do(mig) }); err != nil {
				return fmt.Errorf("request %q: %w: %s", j.requests[i], err, advice(err, j.gpu))
			}
		}
		return nil
	})
}

// undoAll takes all effects back, the last one first. It stops at the first of a
// GPU that stays until ctx ends.
func undoAll(ctx context.Context, all []*job, mig MIG) error {
	return undoEach(all, func(s step) error {
		return persist(ctx, func() error { return s.undo(mig) })
	})
}

// undoOnce is undoAll without patience.
func undoOnce(all []*job, mig MIG) error {
	return undoEach(all, func(s step) error { return s.undo(mig) })
}

func undoEach(all []*job, undo func(step) error) error {
	return parallelly(all, func(j *job) error {
		for i, s := range slices.Backward(j.steps) {
			if err := undo(s); err != nil {
				return fmt.Errorf("request %q: %w: %s", j.requests[i], err, advice(err, j.gpu))
			}
		}
		return nil
	})
}

// parallelly needs no goroutine for a claim on one GPU, which most are.
func parallelly(all []*job, work func(*job) error) error {
	if len(all) == 1 {
		return work(all[0])
	}
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, j := range all {
		group.Go(func() { errs[i] = work(j) })
	}
	group.Wait()
	// A GPU that is lost is only worth a word when nothing else is in the way.
	if reached := slices.DeleteFunc(slices.Clone(errs), lost); inOneLine(reached) != nil {
		return inOneLine(reached)
	}
	return inOneLine(errs)
}

// lost tells that effects stay only where the GPU cannot be reached any more.
func lost(err error) bool { return errors.Is(err, nvml.ErrGPULost) }

// inOneLine joins errors as a pod's event shows them.
func inOneLine(errs []error) error {
	var joined error
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
	}
	return joined
}

const (
	firstPause = 20 * time.Millisecond
	lastPause  = time.Second
)

// persist repeats what may succeed later until ctx ends. It tries once in any
// case: a budget that is used up must not keep an effect from being undone.
func persist(ctx context.Context, do func() error) error {
	pause := firstPause
	for {
		err := do()
		if !errors.Is(err, nvml.ErrInUse) && !errors.Is(err, nvml.ErrTransient) {
			return err
		}
		klog.FromContext(ctx).V(4).Info("A change of a GPU is tried again", "reason", err.Error(), "in", pause)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, lastPause)
	}
}

// advice is what to do about an error on a GPU.
func advice(err error, uuid string) string {
	switch {
	case errors.Is(err, nvml.ErrInsufficientResources):
		return "a MIG instance that somebody else made is in the way: destroy it, or delete the pod so that it is scheduled again"
	case errors.Is(err, nvml.ErrInUse):
		return "end the processes that still use it (nvidia-smi lists them); kubelet tries again"
	case errors.Is(err, nvml.ErrResetRequired), errors.Is(err, nvml.ErrNotSupported):
		return fmt.Sprintf("MIG was disabled on this GPU: enable it (nvidia-smi -i %s -mig 1) and reset the GPU", uuid)
	case errors.Is(err, nvml.ErrGPULost):
		return "the GPU does not answer any more: reset or replace it, and delete the pod so that it is scheduled again"
	default:
		return "see the kernel's log for messages of NVRM; kubelet tries again"
	}
}

// enableMIG prepares a GPU for its first partition. Undone, it leaves the GPU as
// whole claims need it, once nobody has a partition of it.
type enableMIG struct {
	gpu    string
	shared func(uuid string) (bool, error)
}

func (s enableMIG) do(mig MIG) error {
	enabled, err := mig.MIGEnabled(s.gpu)
	if err != nil || enabled {
		return err
	}
	return mig.SetMIG(s.gpu, true)
}

func (s enableMIG) undo(mig MIG) error {
	if shared, err := s.shared(s.gpu); err != nil || shared {
		return err
	}
	if enabled, err := mig.MIGEnabled(s.gpu); err != nil || !enabled {
		return err
	}
	if instances, err := mig.Instances(s.gpu); err != nil || len(instances) > 0 {
		return err
	}
	err := mig.SetMIG(s.gpu, false)
	if errors.Is(err, nvml.ErrResetRequired) || errors.Is(err, nvml.ErrInUse) {
		// The mode of such a board is the administrator's, and one that a
		// monitor keeps in use costs nobody anything: the next whole claim
		// switches it, or says why it cannot.
		return nil
	}
	return err
}

// disableMIG makes a GPU without partitions usable as a whole, which is how it
// is left when undone, too.
type disableMIG struct{ gpu string }

func (s disableMIG) do(mig MIG) error {
	enabled, err := mig.MIGEnabled(s.gpu)
	if err != nil || !enabled {
		return err
	}
	return mig.SetMIG(s.gpu, false)
}

func (disableMIG) undo(MIG) error { return nil }

// makeInstance makes the GPU instance of a partition.
type makeInstance struct {
	device *journal.Device
	// tried tells that what is found in the place may be what was made.
	tried bool
}

func (s *makeInstance) do(mig MIG) error {
	uuid, partition := s.device.UUID, s.device.Partition
	if s.tried {
		found, err := mig.InstanceAt(uuid, partition.ProfileID, partition.Start)
		if err != nil {
			return err
		}
		if found != nil {
			partition.InstanceID = found.ID
			return nil
		}
	}
	s.tried = true
	var err error
	partition.InstanceID, err = mig.CreateInstance(uuid, partition.ProfileID, partition.Start, partition.Size)
	if errors.Is(err, nvml.ErrInsufficientResources) {
		partition.Foreign = true // whatever is there, so that undo leaves it alone
	}
	return err
}

func (s *makeInstance) undo(mig MIG) error {
	if s.device.Partition.Foreign {
		return nil
	}
	instance, err := ownInstance(mig, s.device)
	if err == nil && instance != nil {
		err = mig.DestroyInstance(s.device.UUID, instance.ID)
	}
	if err == nil {
		err = s.gone(mig)
	}
	if err == nil {
		relinquish(s.device.Partition)
	}
	return err
}

// relinquish notes that nothing of ours is in the place of a partition any more:
// what is found there later is somebody else's.
func relinquish(partition *journal.Partition) {
	partition.Foreign, partition.UUID, partition.InstanceID, partition.ComputeID = true, "", 0, 0
}

// gone makes sure of it: an instance that is forgotten would never be found again.
func (s *makeInstance) gone(mig MIG) error {
	instance, err := ownInstance(mig, s.device)
	if err == nil && instance != nil {
		return fmt.Errorf("GPU instance %d on %s is still there after it was destroyed: %w", instance.ID, s.device.UUID, nvml.ErrTransient)
	}
	return err
}

// makeCompute makes the compute instance in the GPU instance that was just made,
// which together are the MIG device of a container.
type makeCompute struct {
	device *journal.Device
	// tried tells that what is found in the GPU instance may be what was made.
	tried bool
}

func (s *makeCompute) do(mig MIG) error {
	partition := s.device.Partition
	var made gpu.MIGDevice
	if s.tried {
		found, err := s.find(mig)
		if err != nil {
			return err
		}
		made = found
	}
	s.tried = true
	if made.UUID == "" {
		var err error
		if made, err = mig.CreateComputeInstance(s.device.UUID, partition.InstanceID); err != nil {
			return err
		}
	}
	partition.ComputeID, partition.UUID = made.ComputeID, made.UUID
	return nil
}

// find looks for what an earlier attempt has made after all.
func (s *makeCompute) find(mig MIG) (gpu.MIGDevice, error) {
	instance, err := mig.InstanceAt(s.device.UUID, s.device.Partition.ProfileID, s.device.Partition.Start)
	switch {
	case err != nil:
		return gpu.MIGDevice{}, err
	case instance == nil:
		return gpu.MIGDevice{}, fmt.Errorf("the GPU instance that was made for %s is gone: %w", s.device.Device, nvml.ErrNotFound)
	case len(instance.Devices) == 0:
		return gpu.MIGDevice{}, nil
	}
	return instance.Devices[0], nil
}

func (s *makeCompute) undo(mig MIG) error {
	if s.device.Partition.Foreign {
		return nil
	}
	instance, err := ownInstance(mig, s.device)
	if err != nil || instance == nil {
		return err
	}
	for _, made := range instance.Devices {
		if err := mig.DestroyComputeInstance(s.device.UUID, instance.ID, made.ComputeID); err != nil {
			return err
		}
	}
	return nil
}

// ownInstance finds what was made for a recorded device, nil when it is gone.
func ownInstance(mig MIG, device *journal.Device) (*gpu.Instance, error) {
	instance, err := mig.InstanceAt(device.UUID, device.Partition.ProfileID, device.Partition.Start)
	if err != nil || instance == nil || !names(*device.Partition, *instance) {
		return nil, err
	}
	return instance, nil
}

// names tells whether a record's partition is this instance, which is on the
// GPU of the record: by the MIG device's UUID once it is known, else by the
// place. An instance without a device is one that is being made or unmade.
func names(partition journal.Partition, instance gpu.Instance) bool {
	if partition.ProfileID != instance.ProfileID || partition.Start != instance.Start {
		return false
	}
	return partition.UUID == "" || len(instance.Devices) == 0 ||
		slices.ContainsFunc(instance.Devices, func(d gpu.MIGDevice) bool { return d.UUID == partition.UUID })
}
