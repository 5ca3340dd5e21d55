package prepare

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// prepareLimit bounds the preparation of one claim, as kubelet's calls are bounded: one GPU
// that does not answer must not keep Reconcile from the other claims.
const prepareLimit = 40 * time.Second

// Reconcile makes records, CDI files and living claims agree. It runs at the start and from
// time to time. It repairs what a crash, a reboot, a damaged file, or a claim that was
// deleted while the plugin was down has left behind. What the API server does not confirm
// stays, and a claim that is gone is left to kubelet for GoneWait: ReconcileIn returns when
// to run again. Each claim is handled under its lock, so claims may be prepared meanwhile.
func (p *Preparer) Reconcile(ctx context.Context) error {
	found, err := p.list(ctx)
	if err != nil {
		return err
	}
	claims := found.damaged // first
	recorded := map[types.UID]bool{}
	for _, record := range found.records {
		recorded[types.UID(record.ClaimUID)] = true
		claims = append(claims, types.UID(record.ClaimUID))
	}
	var failures []error
	for _, claim := range claims {
		failures = append(failures, p.underLock(ctx, claim, p.reconcile))
	}
	p.gone.keep(recorded)
	specs, err := p.CDI.Claims()
	if err != nil {
		return errors.Join(append(failures, err)...)
	}
	for _, claim := range specs {
		if !recorded[claim] {
			failures = append(failures, p.reconcileOrphan(ctx, claim))
		}
	}
	return errors.Join(failures...)
}

// underLock does something to the record of a claim with the claim's lock held. It does
// nothing without a record, and names the claim in the error.
func (p *Preparer) underLock(ctx context.Context, claim types.UID, do func(context.Context, journal.Record) error) error {
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return named("", "", claim, err)
	}
	defer unlock()
	record, err := p.recorded(ctx, claim)
	if err == nil && record.ClaimUID != "" {
		err = do(ctx, record)
	}
	return named(record.Namespace, record.Name, claim, err)
}

// ReconcileIn returns when Reconcile should run again, if it left claims that are gone to
// kubelet for a while.
func (p *Preparer) ReconcileIn() (wait time.Duration, needed bool) {
	age, needed := p.gone.longest()
	return max(0, p.GoneWait-age), needed
}

// reconcile drops a record if its claim is gone, its boot is over, or its preparation was cut
// short. It restores a CDI file that vanished or is another driver's.
func (p *Preparer) reconcile(ctx context.Context, record journal.Record) error {
	claim := types.UID(record.ClaimUID)
	log := klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
	if !p.current(record) {
		log.Info("Forgetting a claim from before the node's last start, or whose preparation was cut short; kubelet prepares it again if it is needed")
		if record.State == journal.Intent {
			return p.releaseIfPossible(ctx, record, preparationUndone)
		}
		return p.releaseIfPossible(ctx, record, claimForgotten)
	}
	// Kubelet's next call for the claim must not wait for an API server that does not answer.
	read, cancel := context.WithTimeout(ctx, readLimit)
	stale, err := p.stale(read, record)
	cancel()
	if err != nil {
		return errors.Join(err, p.restoreSpec(ctx, record)) // its containers may be restarted meanwhile
	}
	if !stale {
		p.gone.forget(claim)
		return p.restoreSpec(ctx, record)
	}
	if p.gone.note(claim) < p.GoneWait {
		log.V(2).Info("A claim is gone, leaving its release to kubelet for a while")
		return nil
	}
	p.gone.forget(claim) // if it cannot be released, its time begins anew
	log.Info("Releasing a claim that is gone")
	return p.releaseIfPossible(ctx, record, claimReleased)
}

// releaseIfPossible leaves effects alone while there is no driver to undo them.
func (p *Preparer) releaseIfPossible(ctx context.Context, record journal.Record, because correction) error {
	if p.node.Load() == nil && p.hasEffects(record) {
		return nil
	}
	// Bounded, because a partition can be in use for ever, and kubelet may be waiting for
	// the locks.
	ctx, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	return because.corrected(p.release(ctx, record))
}

// RestoreSpecs writes all CDI files again that vanished, without the API server. Those of
// claims that are gone are left for Reconcile to remove.
func (p *Preparer) RestoreSpecs(ctx context.Context) error {
	found, err := p.list(ctx)
	if err != nil {
		return err
	}
	var failures []error
	for _, record := range found.records {
		failures = append(failures, p.RestoreSpec(ctx, types.UID(record.ClaimUID)))
	}
	return errors.Join(failures...)
}

// RestoreSpec writes the CDI file of a prepared claim again if it vanished while the claim's
// containers may still be restarted.
func (p *Preparer) RestoreSpec(ctx context.Context, claim types.UID) error {
	return p.underLock(ctx, claim, func(ctx context.Context, record journal.Record) error {
		if !p.current(record) {
			return nil
		}
		return p.restoreSpec(ctx, record)
	})
}

// restoreSpec also removes the CDI file of a partition that was destroyed behind the plugin's
// back: its capability devices may be those of another partition by now.
func (p *Preparer) restoreSpec(ctx context.Context, record journal.Record) error {
	claim, log := types.UID(record.ClaimUID), klog.LoggerWithValues(klog.FromContext(ctx), "claim", klog.KRef(record.Namespace, record.Name), "uid", record.ClaimUID)
	node := p.node.Load()
	if node == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	intact, err := p.intact(ctx, record, node)
	if err != nil {
		return err
	}
	if !intact {
		failed := p.noteGone(ctx, record, node)
		log.Info("A partition of a claim was destroyed, but not by Mica; its containers cannot be restarted until the claim is prepared again")
		if !p.CDI.Has(claim) {
			return errors.Join(failed, p.CDI.Remove(claim)) // what remains of it
		}
		return errors.Join(failed, specWithdrawn.corrected(p.CDI.Remove(claim)))
	}
	if !p.CDI.Has(claim) {
		return specRestored.corrected(p.writeSpec(record, node))
	}
	if fits, err := p.specFits(record, node); err != nil || fits {
		return err
	}
	log.Info("Writing a claim's CDI file again for the NVIDIA driver that is installed now")
	return specReplaced.corrected(p.writeSpec(record, node))
}

// reconcileOrphan handles a CDI file whose record and copy are lost. If the API server says
// that the claim is allocated here, containers may be using it, so it is prepared again. If
// not, the file is removed.
func (p *Preparer) reconcileOrphan(ctx context.Context, uid types.UID) error {
	spec, err := p.CDI.Read(uid)
	if err == nil {
		err = p.adoptOrphan(ctx, uid, spec.NamespacedName)
	}
	return named(spec.Namespace, spec.Name, uid, err)
}

func (p *Preparer) adoptOrphan(ctx context.Context, uid types.UID, name types.NamespacedName) error {
	read, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	claim, err := p.claimOf(read, name, uid)
	if err != nil {
		return err
	}
	living := claim != nil && len(p.results(claim)) > 0
	unlock, err := p.Locks.Lock(ctx, claimKey(uid))
	if err != nil {
		return err
	}
	defer unlock()
	if record, err := p.recorded(ctx, uid); err != nil || record.ClaimUID != "" {
		return err // it is no orphan any more
	}
	if !living {
		klog.FromContext(ctx).Info("Removing a CDI file without a record", "uid", uid)
		return specRemoved.corrected(p.CDI.Remove(uid))
	}
	if !p.CDI.Has(uid) {
		return nil // kubelet has unprepared it meanwhile
	}
	ctx, cancelPrepare := context.WithTimeout(ctx, prepareLimit)
	defer cancelPrepare()
	_, err = p.prepare(ctx, p.timer("prepare"), claim)
	return claimPrepared.corrected(err)
}

// Seen records which partitions a look at GPUs has shown to be destroyed, after asking for
// each by its IDs: claims come and go during a look. It needs every look, because the UUID of
// a partition does not distinguish it from the next one in its place.
func (p *Preparer) Seen(ctx context.Context, gpus []gpu.GPU) error {
	found, err := p.list(ctx)
	if err != nil {
		return fmt.Errorf("look for partitions that were destroyed: %w", err)
	}
	var failures []error
	for _, record := range found.records {
		if p.current(record) && slices.ContainsFunc(record.Devices, func(d journal.Device) bool { return Missing(d, gpus) }) {
			soon, cancel := context.WithTimeout(ctx, takeOverLimit) // the claim may be locked for longer
			failures = append(failures, p.RestoreSpec(soon, types.UID(record.ClaimUID)))
			cancel()
		}
	}
	return errors.Join(failures...)
}

// noteGone records which partitions of a prepared claim are gone, so that what takes their
// place is never taken for them.
func (p *Preparer) noteGone(ctx context.Context, record journal.Record, node *Node) error {
	record, changed := record.Clone(), false
	for i := range record.Devices {
		device := &record.Devices[i]
		if !ours(*device) {
			continue
		}
		var instance *gpu.Instance
		err := persist(ctx, func() (err error) {
			instance, err = ownInstance(node.MIG, device)
			return err
		})
		if err != nil {
			return advised(*device, err)
		}
		if instance == nil {
			relinquish(device)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	return p.store.Put(ctx, record)
}

// gone remembers since when claims with a record are known to be gone. A pod that was deleted
// by force leaves the API server before kubelet has stopped its containers, so a claim is
// not released when it is first found gone.
type gone struct {
	mu    sync.Mutex
	since map[types.UID]time.Time
}

// note returns for how long the claim is known to be gone, 0 at the first time.
func (g *gone) note(claim types.UID) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if since, known := g.since[claim]; known {
		return time.Since(since)
	}
	g.since[claim] = time.Now()
	return 0
}

// forget is for claims that exist, or have no record any more.
func (g *gone) forget(claim types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.since, claim)
}

// keep forgets all claims but these.
func (g *gone) keep(claims map[types.UID]bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for claim := range g.since {
		if !claims[claim] {
			delete(g.since, claim)
		}
	}
}

// longest returns the longest time for which a claim is known to be gone.
func (g *gone) longest() (age time.Duration, any bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, since := range g.since {
		age, any = max(age, time.Since(since)), true
	}
	return age, any
}
