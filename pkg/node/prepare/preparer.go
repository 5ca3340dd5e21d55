// Package prepare turns an allocated claim into what its containers need, and
// takes it back. It owns the order of effects, so that a crash at any point
// leaves a state from which the next start recovers. It never publishes
// anything and never talks to kubelet.
package prepare

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	cdispec "tags.cncf.io/container-device-interface/specs-go"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Claims reads claims from the API server. A claim that does not exist is an
// error for which apierrors.IsNotFound holds.
type Claims interface {
	Get(ctx context.Context, name types.NamespacedName) (*resourceapi.ResourceClaim, error)
}

// Edits tells what a container needs to use GPUs.
type Edits interface {
	Common() (cdispec.ContainerEdits, error)
	GPU(uuid string) (cdispec.ContainerEdits, error)
	// Partition is a MIG device, named by its GPU and NVML's IDs.
	Partition(uuid string, instance, compute int) (cdispec.ContainerEdits, error)
}

// Locks serialises work on a key among goroutines and among processes: during
// a rolling update, two plugins serve one node.
type Locks interface {
	Lock(ctx context.Context, keys ...string) (unlock func(), err error)
}

// Phases records how long a part of an operation took.
type Phases interface {
	ObservePhase(operation, phase string, duration time.Duration)
}

// Node is what the driver knows of its node at one time.
type Node struct {
	Offer Offer
	Edits Edits
	Tools
}

// Options are what a Preparer works with. All fields are required.
type Options struct {
	Journal *journal.Journal
	CDI     *cdi.Directory
	Locks   Locks
	Claims  Claims
	Phases  Phases
	// Driver and Pool select the results of a claim that are prepared here.
	Driver, Pool string
	// BootID tells records of this boot from those of an earlier one, whose
	// containers and CDI files are gone.
	BootID string
	// ReleaseWait is how long a claim waits for kubelet to release a GPU that
	// another claim still holds.
	ReleaseWait time.Duration
	// GoneWait is how long Reconcile leaves a claim that is gone to kubelet,
	// which may still be stopping its containers. Longer than ReleaseWait, it leaves
	// the decision to the claim that needs the GPU.
	GoneWait time.Duration
}

// Preparer prepares and unprepares claims. It is safe for concurrent use: work
// on different claims and GPUs runs in parallel.
type Preparer struct {
	Options
	node atomic.Pointer[Node]
	gone gone
	// damaged holds a token when a record was found unusable.
	damaged chan struct{}
}

// New returns a Preparer that refuses claims until SetNode is called.
func New(options Options) *Preparer {
	return &Preparer{Options: options, damaged: make(chan struct{}, 1)}
}

// Damaged tells that a record was found unusable: Reconcile has to put it back, or
// to prepare its claim anew, which nothing else guards the GPUs of until then.
func (p *Preparer) Damaged() <-chan struct{} { return p.damaged }

func (p *Preparer) reportDamage() {
	select {
	case p.damaged <- struct{}{}:
	default: // Reconcile is due already
	}
}

// SetNode replaces what the node offers.
func (p *Preparer) SetNode(node Node) { p.node.Store(&node) }

// Prepare makes the claim's devices usable by containers and returns them in
// the order of the allocation. Calling it again for a prepared claim returns
// the same devices and restores what is missing.
func (p *Preparer) Prepare(ctx context.Context, claim *resourceapi.ResourceClaim) ([]journal.Device, error) {
	timer := p.timer("prepare")
	unlock, err := p.Locks.Lock(ctx, claimKey(claim.UID))
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", identify(claim), err)
	}
	defer unlock()
	timer.phase("lock-claim")
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
	plan, err := NewPlan(claim, node.Offer)
	if err != nil {
		return nil, err
	}
	// What an earlier attempt or allocation has left is no base to build on, and
	// neither is the copy of its record.
	if p.hasEffects(before) {
		if err := p.release(ctx, claim.UID); err != nil {
			return nil, fmt.Errorf("claim %s: undo what an earlier attempt has left: %w", plan.Claim, err)
		}
	}
	others, release, err := p.hold(ctx, plan)
	if err != nil {
		return nil, err
	}
	defer release()
	timer.phase("lock-gpus")

	record := p.record(plan, node.Offer.Pool)
	record.PodClaim = claim.Annotations[resourceapi.PodResourceClaimAnnotation]
	if err := p.carryOut(ctx, timer, &record, plan, node, others); err != nil {
		return nil, err
	}
	klog.FromContext(ctx).V(2).Info("Prepared claim", "claim", plan.Claim.String(), "uid", claim.UID, "gpus", plan.Exclusive())
	return record.Devices, nil
}

// Unprepare takes a claim's devices back. A claim that was never prepared is
// not an error. Neither is a partition on a GPU that is lost, for whose sake the
// pod would never end: it stays recorded for Reconcile.
func (p *Preparer) Unprepare(ctx context.Context, claim types.UID) error {
	err := p.unprepare(ctx, claim)
	if lost(err) {
		klog.FromContext(ctx).Error(err, "A claim's GPU is lost; what it has left there is undone when the GPU is back", "uid", claim)
		return nil
	}
	return err
}

func (p *Preparer) unprepare(ctx context.Context, claim types.UID) error {
	timer := p.timer("unprepare")
	unlock, err := p.Locks.Lock(ctx, claimKey(claim))
	if err != nil {
		return fmt.Errorf("unprepare claim %s: %w", claim, err)
	}
	defer unlock()
	timer.phase("lock-claim")
	if err := p.release(ctx, claim); err != nil {
		return err
	}
	timer.phase("remove")
	klog.FromContext(ctx).V(2).Info("Unprepared claim", "uid", claim)
	return nil
}

// release forgets a claim and what was made for it; the caller holds its lock.
func (p *Preparer) release(ctx context.Context, claim types.UID) error {
	record, err := p.recorded(ctx, claim)
	if err != nil {
		return fmt.Errorf("release claim %s: %w", claim, err)
	}
	if err := p.announceRelease(ctx, record); err != nil {
		return err
	}
	// Before the partition goes: its capability devices may soon be another's.
	if err := p.CDI.Remove(claim); err != nil {
		return err
	}
	if err := p.unmake(ctx, record); err != nil {
		return fmt.Errorf("release claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return p.Journal.Delete(string(claim))
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
	if p.CDI.Has(claim.UID) {
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

// current tells whether a record speaks of this boot.
func (p *Preparer) current(record journal.Record) bool {
	return record.State == journal.Prepared && record.BootID == p.BootID
}

// recordsAllocation tells whether the record is of exactly the devices that the
// claim has here now: a claim that was released and allocated again can have
// others, or more.
func (p *Preparer) recordsAllocation(record journal.Record, claim *resourceapi.ResourceClaim) bool {
	return len(record.Devices) > 0 && slices.EqualFunc(p.ours(claim), record.Devices, func(r resourceapi.DeviceRequestAllocationResult, d journal.Device) bool {
		return r.Request == d.Request && r.Pool == d.Pool && r.Device == d.Device && string(ptr.Deref(r.ShareID, "")) == d.ShareID
	})
}

// ours are the results of a claim that are prepared here, in their order.
func (p *Preparer) ours(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results), func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver != p.Driver || r.Pool != p.Pool
	})
}

// record is what will be remembered of the plan.
func (p *Preparer) record(plan Plan, pool string) journal.Record {
	record := journal.Record{
		ClaimUID:  string(plan.Claim.UID),
		Namespace: plan.Claim.Namespace,
		Name:      plan.Claim.Name,
		BootID:    p.BootID,
		State:     journal.Prepared,
	}
	for _, assignment := range plan.Assignments {
		form := assignment.Shape.Form()
		record.Devices = append(record.Devices, journal.Device{
			Request:      assignment.Request,
			Pool:         pool,
			Device:       assignment.Shape.Name(),
			UUID:         assignment.Shape.Physical().UUID,
			AdminAccess:  assignment.Admin,
			ShareID:      string(assignment.ShareID),
			Shape:        form.Base,
			Type:         assignment.Shape.Type(),
			CDIDeviceIDs: []string{p.CDI.DeviceID(plan.Claim.UID, nameInClaim(assignment.Shape.Name(), string(assignment.ShareID)))},
			Partition:    assignment.partition(),
			Shares:       form.Shares,
			Sharing:      form.Sharing,
			Interval:     string(assignment.Interval),
			MPS:          assignment.MPS,
			Steps:        assignment.steps(),
		})
	}
	return record
}

// writeSpec publishes the CDI specification of recorded devices. A device that
// several requests were given, as with admin access, appears once: as the claim has
// it, if it does not only look at it.
func (p *Preparer) writeSpec(record journal.Record, node *Node) error {
	claim := claimIn(record)
	var err error
	if claim.Record, err = copied(record); err != nil {
		return fmt.Errorf("claim %s: %w", claim, err)
	}
	common, err := node.Edits.Common()
	if err != nil {
		return fmt.Errorf("claim %s: %w", claim, err)
	}
	files, err := metadataOf(record, p.Driver)
	if err != nil {
		return fmt.Errorf("claim %s, %w", claim, err)
	}
	var devices []cdi.Device
	for _, device := range record.Devices {
		name := nameInClaim(device.Device, device.ShareID)
		had := func(d journal.Device) bool { return !d.AdminAccess && nameInClaim(d.Device, d.ShareID) == name }
		if device.AdminAccess && slices.ContainsFunc(record.Devices, had) || slices.ContainsFunc(devices, func(d cdi.Device) bool { return d.Name == name }) {
			continue
		}
		own, err := editsOf(device, node)
		if err != nil {
			return fmt.Errorf("claim %s, request %q: %w", claim, device.Request, err)
		}
		devices = append(devices, cdi.Device{Name: name, Edits: own, Files: files[name]})
	}
	return p.CDI.Write(claim, common, devices)
}

// claimIn is the claim that a record is of.
func claimIn(record journal.Record) cdi.Claim {
	return cdi.Claim{
		UID:            types.UID(record.ClaimUID),
		NamespacedName: types.NamespacedName{Namespace: record.Namespace, Name: record.Name},
	}
}

// editsOf are those of the device, and of a client of its daemon.
func editsOf(device journal.Device, node *Node) (cdispec.ContainerEdits, error) {
	prepared, err := preparationOf(device.Shape)
	if err != nil {
		return cdispec.ContainerEdits{}, err
	}
	own, err := prepared.edits(device, node.Edits)
	if err != nil || !device.Served() {
		return own, err
	}
	if node.Daemons == nil {
		return own, errNoSupervisor
	}
	client := node.Daemons.Edits(device.MPS.Daemon, limitsOf(device))
	own.Env = slices.Concat(own.Env, client.Env)
	own.DeviceNodes = slices.Concat(own.DeviceNodes, client.DeviceNodes)
	own.Mounts = slices.Concat(own.Mounts, client.Mounts)
	own.Hooks = slices.Concat(own.Hooks, client.Hooks)
	return own, nil
}

// Prepared lists the claims that are prepared on this node.
func (p *Preparer) Prepared(ctx context.Context) ([]journal.Record, error) {
	records, err := p.records(ctx)
	return slices.DeleteFunc(records, func(r journal.Record) bool { return !p.current(r) }), err
}

func claimKey(claim types.UID) string { return "claim-" + string(claim) }

// phaseTimer measures consecutive phases of one operation.
type phaseTimer struct {
	phases    Phases
	operation string
	last      time.Time
}

func (p *Preparer) timer(operation string) *phaseTimer {
	return &phaseTimer{phases: p.Phases, operation: operation, last: time.Now()}
}

func (t *phaseTimer) phase(name string) {
	now := time.Now()
	t.phases.ObservePhase(t.operation, name, now.Sub(t.last))
	t.last = now
}
