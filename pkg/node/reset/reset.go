package reset

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/health"
)

// lockWait is how long to wait for a claim that is being prepared. The next look comes soon.
const lockWait = time.Second

// Program resets an unused GPU by its UUID. The error has the program's reason.
type Program interface {
	Reset(ctx context.Context, uuid string) error
}

// GPUs are those of an open NVIDIA driver, by UUID.
type GPUs interface {
	Health(uuid string) (health.Level, error)
	Instances(uuid string) ([]gpu.Instance, error)
	Persistence(uuid string) (enabled bool, err error)
	SetPersistence(uuid string, enabled bool) error
	// Closed calls do while this process has the driver closed.
	Closed(do func() error) error
}

// Hardware resets GPUs.
type Hardware struct {
	GPUs
	Program
}

// Health has the faults of the GPUs.
type Health interface {
	// Known are the records of GPUs that have or had faults.
	Known() map[string]health.Record
	// KeepResets stores the attempts for a GPU, also over restarts of the process.
	KeepResets(ctx context.Context, uuid string, resets health.Resets)
	// Restored records that a GPU was reset.
	Restored(uuid string)
}

// Claims are those of the node.
type Claims interface {
	// Idle keeps claims from a GPU until release is called, unless one has a part of it.
	Idle(ctx context.Context, uuid string) (release func(), idle bool, err error)
}

// Options configure a Resetter. All fields are required.
type Options struct {
	Health Health
	Claims Claims
	// Allowed are the conditions for which GPUs are reset.
	Allowed func() health.ConditionSet
	// Notify reports the result of an attempt, in a sentence without a full stop.
	Notify func(ctx context.Context, uuid string, worked bool, sentence string)
	// Quiet is how long a GPU must have no fault before it gets claims again.
	Quiet time.Duration
}

// Resetter resets the GPUs of a node. It has no state of its own.
type Resetter struct{ Options }

// New returns a Resetter.
func New(options Options) *Resetter { return &Resetter{options} }

// Look resets the GPUs that are due. One goroutine at a time may call it, and none may read the
// health of GPUs meanwhile.
func (r *Resetter) Look(ctx context.Context, hardware Hardware) {
	for uuid, record := range r.Health.Known() {
		if record.Resets.Persistent {
			// A process disabled it and was killed.
			record.Resets = r.persist(ctx, hardware, uuid, record.Resets)
		}
		if record.ResetDue(r.Allowed(), time.Now()) {
			r.tryToReset(ctx, hardware, uuid, record)
		}
	}
}

// tryToReset resets a GPU unless a claim has it, or it has recovered.
func (r *Resetter) tryToReset(ctx context.Context, hardware Hardware, uuid string, sick health.Record) {
	waiting, cancel := context.WithTimeout(ctx, lockWait)
	release, idle, err := r.Claims.Idle(waiting, uuid)
	cancel()
	if !idle {
		klog.FromContext(ctx).V(2).Info("Waiting with the reset of a GPU until no claim has it", "gpu", uuid, "reason", err)
		return
	}
	defer release()
	if level, err := hardware.Health(uuid); err != nil || sick.Action.Asks() && level.Action == health.ActionNone {
		return // it is lost, or another process has reset it; the next read shows it
	}
	// Stored first: a process that dies of the reset must not try for ever.
	attempt := health.Resets{Tried: sick.Resets.Tried + 1, Last: time.Now().UTC().Truncate(time.Second)}
	r.Health.KeepResets(ctx, uuid, attempt)
	klog.FromContext(ctx).Info("Resetting a GPU", "gpu", uuid, "attempt", attempt.Tried, "of", health.MaxResets)
	// A process that is to end finishes its reset.
	err = r.reset(context.WithoutCancel(ctx), hardware, uuid, attempt)
	if err == nil {
		r.Health.Restored(uuid)
		r.Notify(ctx, uuid, true, fmt.Sprintf("was reset; it gets claims again after %v without a fault", r.Quiet))
		return
	}
	next := "no further attempt is made: end the processes that use the GPU and reset it with nvidia-smi, or reboot the node"
	if pause, more := attempt.Again(); more {
		next = fmt.Sprintf("the next attempt is in %v; end the processes that use the GPU, such as an exporter of metrics", pause)
	}
	r.Notify(ctx, uuid, false, fmt.Sprintf("cannot be reset (attempt %d of %d): %v; %s", attempt.Tried, health.MaxResets, err, next))
}

// errPartitions: a reset would end partitions of an administrator. Those of claims prevent the
// attempt.
var errPartitions = errors.New("it has MIG partitions that no claim has, which a reset would end; delete them with nvidia-smi mig -dci and -dgi")

func (r *Resetter) reset(ctx context.Context, hardware Hardware, uuid string, attempt health.Resets) error {
	instances, err := hardware.Instances(uuid)
	switch {
	case err != nil:
		return err
	case len(instances) > 0:
		return errPartitions
	}
	// For a reset, the persistence mode counts as a user of the GPU (NVIDIA/NVSentinel #1690).
	persistent, err := hardware.Persistence(uuid)
	if err != nil {
		return err
	}
	if persistent {
		attempt.Persistent = true
		r.Health.KeepResets(ctx, uuid, attempt)
		defer r.persist(ctx, hardware, uuid, attempt)
		if err := hardware.SetPersistence(uuid, false); err != nil {
			return err
		}
	}
	return hardware.Closed(func() error { return hardware.Reset(ctx, uuid) })
}

// persist enables the persistence mode again. If it fails, the next look tries again.
func (r *Resetter) persist(ctx context.Context, hardware Hardware, uuid string, resets health.Resets) health.Resets {
	if err := hardware.SetPersistence(uuid, true); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot enable the persistence mode of a GPU again after its reset; retrying", "gpu", uuid)
		return resets
	}
	resets.Persistent = false
	r.Health.KeepResets(ctx, uuid, resets)
	return resets
}
