package prepare

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

var errNoDriver = errors.New("the NVIDIA driver on this node does not answer yet, so no GPU can be prepared: see the log of this plugin for the reason; kubelet tries again")

// Prepare makes the claim's devices usable by containers and returns them in the order of
// the allocation. Called again for a prepared claim, it returns the same devices and
// restores what is missing.
//
// kubelet knows a plugin before the plugin has looked at its GPUs. A claim that comes
// earlier waits up to startPatience.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	devices, err := p.lockAndPrepare(ctx, claim)
	if errors.Is(err, errNoDriver) && p.awaitLook(ctx) {
		devices, err = p.lockAndPrepare(ctx, claim)
	}
	return devices, named(claim.Namespace, claim.Name, claim.UID, err)
}

// named names the claim in an error. Only the entrances of the package call it.
func named(namespace, name string, uid types.UID, err error) error {
	switch {
	case err == nil:
		return nil
	case name == "": // its record was lost, or never there
		return fmt.Errorf("claim %s: %w", uid, err)
	}
	return fmt.Errorf("claim %s/%s (UID %s): %w", namespace, name, uid, err)
}

// startPatience is how long a claim waits for the first look at the GPUs. It is shorter than
// the 60 to 90 seconds after which kubelet tries a refused claim again.
const startPatience = 5 * time.Second

// awaitLook waits for the first look at the GPUs, and reports whether there is a driver.
func (p *Preparer) awaitLook(ctx context.Context) bool {
	select {
	case <-p.looked:
	case <-ctx.Done():
	case <-time.After(startPatience):
	}
	return p.node.Load() != nil
}

func (p *Preparer) lockAndPrepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	timer := p.timer("prepare")
	unlock, err := p.Locks.Lock(ctx, claimKey(claim.UID))
	if err != nil {
		return nil, err
	}
	defer unlock()
	timer.phase(ctx, "lock-claim")
	p.gone.forget(claim.UID) // kubelet prepares only claims that exist
	return p.prepare(ctx, timer, claim)
}

// prepare is Prepare for callers that hold the claim's lock.
func (p *Preparer) prepare(ctx context.Context, timer *phaseTimer, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	before, err := p.recorded(ctx, claim.UID)
	if err != nil {
		return nil, err
	}
	if p.current(before) && p.recordsAllocation(before, claim) {
		if intact, err := p.restore(ctx, before); intact || err != nil {
			return before.Devices, err
		}
	}
	node := p.node.Load()
	if node == nil {
		return nil, errNoDriver
	}
	record, err := p.plan(claim, node.Pool)
	if err != nil {
		return nil, err
	}
	// Begin with nothing: undo what an earlier attempt or allocation has left, and remove the
	// copy of its record.
	if p.hasEffects(before) {
		if err := p.release(ctx, before); err != nil {
			return nil, fmt.Errorf("undo what an earlier attempt has left: %w", err)
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

// restore makes sure that a prepared claim still has its partitions, modes, daemons and CDI
// file. If it is not intact, the claim is prepared again.
func (p *Preparer) restore(ctx context.Context, record journal.Record) (intact bool, err error) {
	node := p.node.Load()
	if node == nil { // without a driver, its partitions cannot be checked
		return p.CDI.Has(types.UID(record.ClaimUID)), nil
	}
	if intact, err := p.intact(ctx, record, node); err != nil || !intact {
		return false, err
	}
	if err := p.keepModes(ctx, record, node); err != nil {
		return false, err
	}
	if err := p.serve(ctx, &record, node); err != nil {
		return false, err
	}
	fits, err := p.specFits(record, node)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot compare a claim's CDI file with the NVIDIA driver; keeping the file", "claim", klog.KRef(record.Namespace, record.Name))
	}
	if fits {
		return true, nil
	}
	err = p.writeSpec(record, node)
	if err != nil && !p.hasEffects(record) {
		return false, nil // else preparing again would destroy a partition in use
	}
	return err == nil, err
}
