package prepare

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/cdi"
	"github.com/mica-gpu/mica/pkg/journal"
)

// Reconcile makes records, CDI files and living claims agree. It runs at the
// start and from time to time: it repairs what a crash, a reboot, a damaged
// file, or a claim that was deleted while the plugin was down has left behind.
// What the API server does not confirm stays as it is. Each claim is handled
// under its lock, so claims may be prepared at the same time.
func (p *Preparer) Reconcile(ctx context.Context) error {
	records, err := p.records(ctx)
	if err != nil {
		return err
	}
	var failures []error
	recorded := map[types.UID]bool{}
	for _, record := range records {
		recorded[types.UID(record.ClaimUID)] = true
		if err := p.reconcileRecord(ctx, types.UID(record.ClaimUID)); err != nil {
			failures = append(failures, err)
		}
	}
	specs, err := p.CDI.Claims()
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	for _, spec := range specs {
		if recorded[spec.UID] {
			continue
		}
		if err := p.reconcileOrphan(ctx, spec); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// reconcileRecord drops a record whose claim is gone, whose boot is over, or whose
// preparation has ended halfway with the process that was at it, and restores a CDI file that vanished.
func (p *Preparer) reconcileRecord(ctx context.Context, claim types.UID) error {
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return fmt.Errorf("reconcile claim %s: %w", claim, err)
	}
	defer unlock()
	record, found, err := p.Journal.Get(string(claim))
	if err != nil || !found {
		return err // released, or damaged, in the meantime
	}
	if !p.current(record) {
		klog.FromContext(ctx).Info("Forgetting a claim from before the node's last start, or whose preparation was cut short; kubelet prepares it again if it is needed", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
		return p.releaseIfPossible(ctx, record)
	}
	stale, err := p.stale(ctx, record)
	if err != nil {
		return err
	}
	if stale {
		klog.FromContext(ctx).Info("Releasing a claim that is gone", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
		return p.releaseIfPossible(ctx, record)
	}
	return p.restoreSpec(ctx, record)
}

// releaseIfPossible leaves effects alone while there is no driver to undo them
// with; there will be another time when there is.
func (p *Preparer) releaseIfPossible(ctx context.Context, record journal.Record) error {
	if p.node.Load() == nil && p.hasEffects(record) {
		return nil
	}
	return p.release(ctx, types.UID(record.ClaimUID))
}

// RestoreSpec re-makes the CDI file of a prepared claim that vanished while
// its containers may still be restarted.
func (p *Preparer) RestoreSpec(ctx context.Context, claim types.UID) error {
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return fmt.Errorf("restore the CDI file of claim %s: %w", claim, err)
	}
	defer unlock()
	record, found, err := p.Journal.Get(string(claim))
	if err != nil || !found || !p.current(record) {
		return err
	}
	return p.restoreSpec(ctx, record)
}

// restoreSpec also withdraws the CDI file of a partition that somebody has
// destroyed: its capability devices may be those of another partition by now.
func (p *Preparer) restoreSpec(ctx context.Context, record journal.Record) error {
	claim := claimIn(record)
	node := p.node.Load()
	if node == nil {
		return nil
	}
	intact, err := p.intact(record)
	if err != nil {
		return err
	}
	if !intact {
		klog.FromContext(ctx).Info("A partition of a claim was destroyed by somebody else; its containers cannot be restarted until the claim is prepared again", "claim", klog.KRef(claim.Namespace, claim.Name), "uid", claim.UID)
		return p.CDI.Remove(claim.UID)
	}
	if p.CDI.Has(claim.UID) {
		return nil
	}
	return p.writeSpec(record, node.Edits)
}

// reconcileOrphan handles a CDI file without a record, which a crash between
// the two or a damaged record leaves behind. Where the API server says that the
// claim is allocated here, containers may be using it, so it is prepared anew;
// else the file goes.
func (p *Preparer) reconcileOrphan(ctx context.Context, spec cdi.Claim) error {
	if spec.Name != "" {
		claim, err := p.claimOf(ctx, journal.Record{ClaimUID: string(spec.UID), Namespace: spec.Namespace, Name: spec.Name})
		if err != nil {
			return err
		}
		if claim != nil && len(p.ours(claim)) > 0 {
			_, err := p.Prepare(ctx, claim)
			return err
		}
	}
	unlock, err := p.Locks.Lock(ctx, claimKey(spec.UID))
	if err != nil {
		return fmt.Errorf("remove the orphan CDI file of claim %s: %w", spec.UID, err)
	}
	defer unlock()
	if _, found, err := p.Journal.Get(string(spec.UID)); err != nil || found {
		return err // it is no orphan any more
	}
	klog.FromContext(ctx).Info("Removing a CDI file without a record", "uid", spec.UID)
	return p.CDI.Remove(spec.UID)
}
