package prepare

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// prepareLimit bounds the preparation of one claim, as kubelet's calls are bounded:
// one GPU that does not answer must not keep Reconcile from the other claims.
const prepareLimit = 40 * time.Second

// Reconcile makes records, CDI files and living claims agree. It runs at the
// start and from time to time: it repairs what a crash, a reboot, a damaged
// file, or a claim that was deleted while the plugin was down has left behind.
// What the API server does not confirm stays as it is, and a claim that is gone
// is left to kubelet for GoneWait: ReconcileIn tells when to come again. Each
// claim is handled under its lock, so claims may be prepared at the same time.
func (p *Preparer) Reconcile(ctx context.Context) error {
	found, err := p.list(ctx)
	if err != nil {
		return err
	}
	claims := found.damaged // to begin with
	recorded := map[types.UID]bool{}
	for _, record := range found.records {
		recorded[types.UID(record.ClaimUID)] = true
		claims = append(claims, types.UID(record.ClaimUID))
	}
	var failures []error
	for _, claim := range claims {
		if err := p.reconcileRecord(ctx, claim); err != nil {
			failures = append(failures, err)
		}
	}
	p.gone.keep(recorded)
	specs, err := p.CDI.Claims()
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	for _, claim := range specs {
		if recorded[claim] {
			continue
		}
		if err := p.reconcileOrphan(ctx, claim); err != nil {
			failures = append(failures, err)
		}
	}
	return errors.Join(failures...)
}

// ReconcileIn tells when Reconcile should run again, if it left claims that are
// gone to kubelet for a while.
func (p *Preparer) ReconcileIn() (wait time.Duration, needed bool) {
	age, needed := p.gone.longest()
	return max(0, p.GoneWait-age), needed
}

// reconcileRecord drops a record whose claim is gone, whose boot is over, or whose
// preparation has ended halfway with the process that was at it, and restores a
// CDI file that vanished or is another driver's.
func (p *Preparer) reconcileRecord(ctx context.Context, claim types.UID) error {
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return fmt.Errorf("reconcile claim %s: %w", claim, err)
	}
	defer unlock()
	record, err := p.recorded(ctx, claim)
	if err != nil || record.ClaimUID == "" {
		return err // released, or damaged, in the meantime
	}
	if !p.current(record) {
		klog.FromContext(ctx).Info("Forgetting a claim from before the node's last start, or whose preparation was cut short; kubelet prepares it again if it is needed", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
		if record.State == journal.Intent {
			return p.releaseIfPossible(ctx, record, preparationUndone)
		}
		return p.releaseIfPossible(ctx, record, claimForgotten)
	}
	stale, err := p.staleSoon(ctx, record)
	if err != nil {
		return errors.Join(err, p.restoreSpec(ctx, record)) // its containers may be restarted meanwhile
	}
	if stale {
		if p.gone.seen(claim) < p.GoneWait {
			klog.FromContext(ctx).V(2).Info("A claim is gone, leaving its release to kubelet for a while", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
			return nil
		}
		p.gone.forget(claim) // where it cannot be released, its time begins anew
		klog.FromContext(ctx).Info("Releasing a claim that is gone", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
		return p.releaseIfPossible(ctx, record, claimReleased)
	}
	p.gone.forget(claim)
	return p.restoreSpec(ctx, record)
}

// releaseIfPossible leaves effects alone while there is no driver to undo them
// with; there will be another time when there is.
func (p *Preparer) releaseIfPossible(ctx context.Context, record journal.Record, because correction) error {
	if p.node.Load() == nil && p.hasEffects(record) {
		return nil
	}
	// Bounded, because a partition can be in use for ever, and kubelet may be
	// waiting for the locks.
	ctx, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	return because.corrected(p.release(ctx, types.UID(record.ClaimUID)))
}

// staleSoon is for callers that hold the claim's lock: kubelet's next call for the
// claim must not wait for an API server that does not answer.
func (p *Preparer) staleSoon(ctx context.Context, record journal.Record) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return p.stale(ctx, record)
}

// RestoreSpecs re-makes all CDI files that vanished, without the API server: those
// of claims that are gone are for Reconcile to remove.
func (p *Preparer) RestoreSpecs(ctx context.Context) error {
	records, err := p.records(ctx)
	if err != nil {
		return err
	}
	var failures []error
	for _, record := range records {
		failures = append(failures, p.RestoreSpec(ctx, types.UID(record.ClaimUID)))
	}
	return errors.Join(failures...)
}

// RestoreSpec re-makes the CDI file of a prepared claim that vanished while
// its containers may still be restarted.
func (p *Preparer) RestoreSpec(ctx context.Context, claim types.UID) error {
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return fmt.Errorf("restore the CDI file of claim %s: %w", claim, err)
	}
	defer unlock()
	record, err := p.recorded(ctx, claim)
	if err != nil || !p.current(record) {
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
	ctx, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	intact, err := p.intact(ctx, record)
	if err != nil {
		return err
	}
	if !intact {
		unnoted := p.noteGone(ctx, record, node)
		klog.FromContext(ctx).Info("A partition of a claim was destroyed by somebody else; its containers cannot be restarted until the claim is prepared again", "claim", klog.KRef(claim.Namespace, claim.Name), "uid", claim.UID)
		if !p.CDI.Has(claim.UID) {
			return errors.Join(unnoted, p.CDI.Remove(claim.UID)) // of what remains
		}
		return errors.Join(unnoted, specWithdrawn.corrected(p.CDI.Remove(claim.UID)))
	}
	if !p.CDI.Has(claim.UID) {
		return specRestored.corrected(p.writeSpec(record, node))
	}
	if fits, err := p.specFits(claim, node); err != nil || fits {
		return err
	}
	klog.FromContext(ctx).Info("Writing a claim's CDI file anew for the NVIDIA driver that is installed now", "claim", klog.KRef(claim.Namespace, claim.Name), "uid", claim.UID)
	return specReplaced.corrected(p.writeSpec(record, node))
}

// reconcileOrphan handles a CDI file without a record or a copy of it, both of
// which were damaged. Where the API server says that the claim is allocated here,
// containers may be using it, so it is prepared anew; else the file goes.
func (p *Preparer) reconcileOrphan(ctx context.Context, uid types.UID) error {
	spec, err := p.CDI.Read(uid)
	if err != nil {
		return err
	}
	claim, err := p.claimOfOrphan(ctx, spec)
	if err != nil {
		return err
	}
	unlock, err := p.Locks.Lock(ctx, claimKey(spec.UID))
	if err != nil {
		return fmt.Errorf("take care of the orphan CDI file of claim %s: %w", spec.UID, err)
	}
	defer unlock()
	if record, err := p.recorded(ctx, spec.UID); err != nil || record.ClaimUID != "" {
		return err // it is no orphan any more
	}
	if claim != nil && len(p.results(claim)) > 0 {
		if !p.CDI.Has(spec.UID) {
			return nil // kubelet has unprepared it meanwhile
		}
		ctx, cancel := context.WithTimeout(ctx, prepareLimit)
		defer cancel()
		_, err := p.prepareLocked(ctx, p.timer("prepare"), claim)
		return claimPrepared.corrected(err)
	}
	klog.FromContext(ctx).Info("Removing a CDI file without a record", "uid", spec.UID)
	return specRemoved.corrected(p.CDI.Remove(spec.UID))
}

// claimOfOrphan is nil when the claim is gone or the file does not name it.
func (p *Preparer) claimOfOrphan(ctx context.Context, spec cdi.Claim) (*resourceapi.ResourceClaim, error) {
	if spec.Name == "" {
		return nil, nil //nolint:nilnil // gone is an answer
	}
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	return p.claimOf(ctx, journal.Record{ClaimUID: string(spec.UID), Namespace: spec.Namespace, Name: spec.Name})
}
