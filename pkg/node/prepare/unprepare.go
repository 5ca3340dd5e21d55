package prepare

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// Unprepare takes a claim's devices back. A claim that was never prepared is
// not an error. Neither is a partition on a GPU that is lost, or on a node whose driver
// was taken away, for whose sake the pod would never end: it stays recorded for Reconcile.
func (p *Preparer) Unprepare(ctx context.Context, claim types.UID) error {
	err := p.unprepare(ctx, claim)
	if errors.Is(err, errNoDriver) && p.awaitLook(ctx) {
		err = p.unprepare(ctx, claim)
	}
	log := klog.FromContext(ctx)
	switch {
	case lost(err):
		log.Error(err, "A claim's GPU is lost; what it has left there is undone when the GPU is back", "uid", claim)
	case errors.Is(err, errNoDriver) && p.noDriver.Load():
		log.Error(err, "The NVIDIA driver is gone; what a claim has left on its GPU is undone when the driver is back", "uid", claim)
	default:
		return err
	}
	return nil
}

func (p *Preparer) unprepare(ctx context.Context, claim types.UID) error {
	timer := p.timer("unprepare")
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return fmt.Errorf("unprepare claim %s: %w", claim, err)
	}
	defer unlock()
	timer.phase(ctx, "lock-claim")
	if err := p.release(ctx, claim); err != nil {
		return err
	}
	timer.phase(ctx, "remove")
	klog.FromContext(ctx).V(2).Info("Unprepared claim", "uid", claim)
	return nil
}

// release forgets a claim and what was made for it; the caller holds its lock.
func (p *Preparer) release(ctx context.Context, claim types.UID) error {
	record, err := p.recorded(ctx, claim)
	if err != nil {
		return fmt.Errorf("release claim %s: %w", claim, err)
	}
	p.announceRelease(ctx, record)
	// Before the partition goes: its capability devices may soon be another's.
	if err := p.CDI.Remove(claim); err != nil {
		return err
	}
	if err := p.unmake(ctx, record); err != nil {
		return fmt.Errorf("release claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return p.Journal.Delete(string(claim))
}
