package prepare

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

var errNoDriver = errors.New("the NVIDIA driver on this node does not answer yet, so no GPU can be prepared: see the log of this plugin for the reason; kubelet tries again")

// Prepare makes the claim's devices usable by containers and returns them in
// the order of the allocation. Calling it again for a prepared claim returns
// the same devices and restores what is missing.
//
// kubelet knows a plugin before it has looked at its GPUs. A claim that comes then waits for that, startPatience
// at most.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	devices, err := p.prepareOnce(ctx, claim)
	if errors.Is(err, errNoDriver) && p.awaitLook(ctx) {
		return p.prepareOnce(ctx, claim)
	}
	return devices, err
}

// startPatience is how long a claim waits for the first look, to be prepared or taken back. It is shorter than the
// 60 to 90 seconds after which kubelet tries again a claim that was refused.
const startPatience = 5 * time.Second

// awaitLook waits for the first look at the GPUs, and tells whether there is a driver.
func (p *Preparer) awaitLook(ctx context.Context) bool {
	select {
	case <-p.looked:
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	return p.node.Load() != nil
}

func (p *Preparer) prepareOnce(ctx context.Context, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	timer := p.timer("prepare")
	unlock, err := p.Locks.Lock(ctx, claimKey(claim.UID))
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", identify(claim), err)
	}
	defer unlock()
	timer.phase(ctx, "lock-claim")
	p.gone.forget(claim.UID) // kubelet would not ask for it
	return p.prepareLocked(ctx, timer, claim)
}

// prepareLocked is Prepare for callers that hold the claim's lock.
func (p *Preparer) prepareLocked(ctx context.Context, timer *phaseTimer, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	before, err := p.recorded(ctx, claim.UID)
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", identify(claim), err)
	}
	if devices, done, err := p.prepared(ctx, before, claim); done || err != nil {
		return devices, err
	}
	node := p.node.Load()
	if node == nil {
		return nil, fmt.Errorf("claim %s: %w", identify(claim), errNoDriver)
	}
	record, err := p.plan(claim, node.Pool)
	if err != nil {
		return nil, err
	}
	// What an earlier attempt or allocation has left is no base to build on, and
	// neither is the copy of its record.
	if p.hasEffects(before) {
		if err := p.release(ctx, claim.UID); err != nil {
			return nil, fmt.Errorf("claim %s: undo what an earlier attempt has left: %w", identify(claim), err)
		}
	}
	others, release, err := p.hold(ctx, record)
	if err != nil {
		return nil, err
	}
	defer release()
	timer.phase(ctx, "lock-gpus")

	if err := p.transact(ctx, timer, &record, node, others); err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Prepared claim", "claim", klog.KObj(claim), "uid", claim.UID, "gpus", gpusHeldBy(record))
	return record.Devices, nil
}

// prepared answers for a claim that is prepared already, after making sure
// that its partitions, its daemons and its CDI specification are still there. Anything
// doubtful, such as a record from before a reboot, is prepared anew.
func (p *Preparer) prepared(ctx context.Context, record journal.Record, claim *resourceapi.ResourceClaim) (devices []journal.Device, done bool, err error) {
	if !p.current(record) || !p.recordsAllocation(record, claim) {
		return nil, false, nil
	}
	if intact, err := p.intact(ctx, record); err != nil || !intact {
		return nil, false, err
	}
	node := p.node.Load()
	if node != nil {
		if err := p.keepModes(ctx, record, node); err != nil {
			return nil, false, err
		}
		if err := p.serve(ctx, &record, node); err != nil {
			return nil, false, err
		}
	}
	fits, err := p.specFits(identify(claim), node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "A claim keeps its CDI file")
	}
	if fits {
		return record.Devices, true, nil
	}
	if node == nil {
		return nil, false, nil
	}
	if err := p.writeSpec(record, node); err != nil {
		if p.hasEffects(record) {
			return nil, false, err // preparing anew would destroy a partition that is in use
		}
		return nil, false, nil
	}
	return record.Devices, true, nil
}
