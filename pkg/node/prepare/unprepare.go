package prepare

import (
	"cmp"
	"context"
	"errors"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Unprepare takes a claim's devices back. A claim that was never prepared is no error.
// Neither is a partition on a lost GPU, or on a node whose driver was removed: the pod
// would never end. The partition stays recorded for Reconcile.
func (p *Preparer) Unprepare(ctx context.Context, claim types.UID) error {
	err := p.unprepare(ctx, claim)
	if errors.Is(err, errNoDriver) && p.awaitLook(ctx) {
		err = p.unprepare(ctx, claim)
	}
	log := klog.FromContext(ctx)
	switch {
	case lost(err):
		log.Error(err, "The GPU of a claim is lost; undoing what the claim has left there once the GPU is back", "uid", claim)
	case errors.Is(err, errNoDriver) && p.noDriver.Load():
		log.Error(err, "The NVIDIA driver is gone; undoing what the claim has left on its GPU once the driver is back", "uid", claim)
	default:
		return err
	}
	return nil
}

func (p *Preparer) unprepare(ctx context.Context, claim types.UID) error {
	timer := p.timer("unprepare")
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return named("", "", claim, err)
	}
	defer unlock()
	timer.phase(ctx, "lock-claim")
	record, err := p.recorded(ctx, claim)
	if err == nil {
		record.ClaimUID = string(claim) // also without a record
		err = p.release(ctx, record)
	}
	if err != nil {
		return named(record.Namespace, record.Name, claim, err)
	}
	timer.phase(ctx, "remove")
	klog.FromContext(ctx).V(2).Info("Unprepared claim", "uid", claim)
	return nil
}

// release undoes and forgets a recorded claim, whose lock the caller holds.
func (p *Preparer) release(ctx context.Context, record journal.Record) error {
	if p.hasEffects(record) && record.State != journal.Intent {
		record.State = journal.Intent
		if err := p.store.Put(ctx, record); err != nil {
			// Effects can be undone from any record: a full disk must not keep the pod.
			klog.FromContext(ctx).Error(err, "Releasing a claim although its record cannot say so; make space on the disk of the plugin's directory", "claim", klog.KRef(record.Namespace, record.Name))
		}
	}
	// Before the partition goes: its capability devices may soon be another's.
	if err := p.CDI.Remove(types.UID(record.ClaimUID)); err != nil {
		return err
	}
	if p.hasEffects(record) {
		return p.undo(ctx, record)
	}
	return p.store.Delete(record.ClaimUID)
}

// undo undoes the recorded effects and deletes the record. The caller holds the claim's
// lock and no GPU's.
func (p *Preparer) undo(ctx context.Context, record journal.Record) error {
	node := p.node.Load()
	if node == nil {
		return errNoDriver
	}
	record = record.Clone()
	uuids := affected(record)
	// A process may use a GPU for as long as ctx lasts, so the GPU's other claims have
	// their turn between two attempts.
	var last error
	return persist(ctx, func() error {
		unlock, err := p.lockGPUs(ctx, uuids)
		if err != nil {
			return cmp.Or(last, err)
		}
		defer unlock()
		before := record.Clone()
		var w work
		if w, last = workOf(&record, p.neighbours(ctx, record.ClaimUID)); last != nil {
			return last
		}
		last = w.undo(ctx, node.Tools)
		switch {
		case last == nil:
			// Under the lock, so that the last of two claims of a GPU sees that it is
			// the last, and disables MIG.
			last = p.store.Delete(record.ClaimUID)
		case !reflect.DeepEqual(before, record):
			last = inOneLine(last, p.remember(ctx, &record))
		}
		return last
	})
}

// hasEffects reports whether the recorded claim may have left something on a GPU, if only
// its mode.
func (p *Preparer) hasEffects(record journal.Record) bool {
	return record.BootID == p.BootID && len(affected(record)) > 0
}

// affected are the GPUs on which steps may have left something, sorted.
func affected(record journal.Record) []string {
	return gpusOf(record, func(d journal.Device) bool { return slices.ContainsFunc(d.Steps, leaves) })
}
