package prepare

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// releasePoll is how often the journal is looked at while another claim still
// holds a GPU.
const releasePoll = 50 * time.Millisecond

// hold locks the GPUs of a claim that is to be prepared, and makes sure that no other
// claim holds a part of them that it needs. The driver is the last line of defence against two
// workloads on one exclusive device: a pod that was deleted by force can leave
// the API server before kubelet has stopped its containers
// (kubernetes/kubernetes#141471).
//
// It gives kubelet time to unprepare the other claim, for which that claim needs
// the locks. When the time is up and the API server confirms that the other
// claim no longer has the device, kubelet has lost track of it, and it is
// released here. What the other claims have then is returned.
func (p *Preparer) hold(ctx context.Context, wanted journal.Record) (others neighbours, release func(), err error) {
	uuids := gpusHeldBy(wanted)
	if len(uuids) == 0 {
		return none, func() {}, nil // admin access changes nothing, so it excludes nobody
	}
	patience := time.NewTimer(p.ReleaseWait)
	defer patience.Stop()
	over := false
	for {
		unlock, err := p.lockGPUs(ctx, uuids)
		if err != nil {
			return nil, nil, fmt.Errorf("claim %s: %w", claimIn(wanted), err)
		}
		holder, found, err := p.holder(ctx, wanted)
		if err == nil && holder == nil {
			held := p.heldBeside(wanted.ClaimUID, found)
			return func() ([]journal.Device, error) { return held, nil }, unlock, nil
		}
		unlock()
		if err != nil {
			return nil, nil, err
		}
		if over {
			if err := newerHolder(wanted, *holder, found); err != nil {
				return nil, nil, err
			}
			if err := p.takeOver(ctx, wanted, *holder); err != nil {
				return nil, nil, err
			}
			continue
		}
		select {
		case <-ctx.Done():
			over = true
		case <-patience.C:
			over = true
		case <-time.After(releasePoll):
		}
	}
}

// none is what is asked of neighbours by a claim that holds nothing.
func none() ([]journal.Device, error) { return nil, nil }

// holder finds another claim's record that holds something that the wanted one needs.
// An intent counts, also one of a share of the same device: its effects may have
// happened. It also returns everything that is recorded.
func (p *Preparer) holder(ctx context.Context, wanted journal.Record) (*journal.Record, listing, error) {
	found, err := p.list(ctx)
	if err != nil {
		return nil, listing{}, err
	}
	needed := holdings(wanted)
	for _, record := range p.ofThisBoot(found) {
		if record.ClaimUID == wanted.ClaimUID {
			continue
		}
		for _, held := range holdings(record) {
			if slices.ContainsFunc(needed, func(n holding) bool {
				return held.overlaps(n) && (record.State == journal.Intent || !held.coexists(n))
			}) {
				return &record, found, nil
			}
		}
	}
	return nil, found, nil
}

// newerHolder is why a claim that a newer version has prepared is not taken over, however
// long it is gone; nil for another holder.
func newerHolder(wanted, holder journal.Record, found listing) error {
	for _, bad := range found.newer {
		if bad.ClaimUID == holder.ClaimUID {
			return fmt.Errorf("claim %s was given a GPU (%v) that claim %s holds or may hold: %w", claimIn(wanted), gpusHeldBy(wanted), claimIn(holder), bad)
		}
	}
	return nil
}

// takeOver releases a claim that is in the way, if it is gone.
func (p *Preparer) takeOver(ctx context.Context, wanted, holder journal.Record) error {
	claim, uuids := claimIn(wanted), gpusHeldBy(wanted)
	stale, err := p.stale(ctx, holder)
	if err != nil {
		return fmt.Errorf("claim %s needs a GPU that claim %s/%s held, and whether that claim still exists is not known: %w", claim, holder.Namespace, holder.Name, err)
	}
	if !stale && holder.State == journal.Intent && shareDevices(wanted, holder) {
		return fmt.Errorf("claim %s was given a GPU (%v) of which claim %s/%s (UID %s) is being prepared or released, which takes longer than it should: see the log of this plugin for the reason; kubelet tries again", claim, uuids, holder.Namespace, holder.Name, holder.ClaimUID)
	}
	if !stale {
		return fmt.Errorf("claim %s was given a GPU (%v) that claim %s/%s (UID %s) still holds on this node: delete one of the two pods", claim, uuids, holder.Namespace, holder.Name, holder.ClaimUID)
	}
	klog.FromContext(ctx).Info("Releasing a claim that is gone and that kubelet did not unprepare", "claim", klog.KRef(holder.Namespace, holder.Name), "uid", holder.ClaimUID)
	// Bounded, because the other claim may be waiting for this one.
	unprepare, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	return p.unprepare(unprepare, types.UID(holder.ClaimUID))
}

// shareDevices tells whether both claims have shares of one device.
func shareDevices(a, b journal.Record) bool {
	needed := holdings(a)
	return slices.ContainsFunc(holdings(b), func(held holding) bool { return slices.ContainsFunc(needed, held.coexists) })
}

// stale tells whether a record's claim no longer exists or no longer has the
// recorded devices. Only the API server's own word counts.
func (p *Preparer) stale(ctx context.Context, record journal.Record) (bool, error) {
	claim, err := p.claimOf(ctx, record)
	if err != nil {
		return false, err
	}
	return claim == nil || !p.recordsAllocation(record, claim), nil
}

// claimOf reads the claim of a record, nil when it is gone or another claim
// has taken its name.
func (p *Preparer) claimOf(ctx context.Context, record journal.Record) (*resourceapi.ResourceClaim, error) {
	claim, err := p.Claims.Get(ctx, types.NamespacedName{Namespace: record.Namespace, Name: record.Name})
	if apierrors.IsNotFound(err) || err == nil && string(claim.UID) != record.ClaimUID {
		return nil, nil //nolint:nilnil // gone is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return claim, nil
}

// holding is what a claim holds of a GPU: memory slices, or all of it.
type holding struct {
	// gpu is empty if it may be any.
	gpu string
	// sharedAs is empty unless other claims may have shares of it.
	sharedAs string
	gpu.Placement
}

// coexists tells whether both are shares of one device.
func (h holding) coexists(other holding) bool {
	return h.sharedAs != "" && h.sharedAs == other.sharedAs && h.gpu == other.gpu
}

func (h holding) overlaps(other holding) bool {
	return (h.gpu == other.gpu || h.gpu == "") && h.Placement.Overlaps(other.Placement)
}

func holdingOf(device journal.Device) holding {
	return holding{device.UUID, sharedName(device), device.Form().Placement}
}

// holdings are what a recorded claim holds for itself.
func holdings(record journal.Record) []holding {
	var held []holding
	for _, device := range record.Devices {
		if !device.AdminAccess {
			held = append(held, holdingOf(device))
		}
	}
	return held
}

// gpusHeldBy are the UUIDs of the GPUs of which a recorded claim holds something, sorted.
func gpusHeldBy(record journal.Record) []string {
	var uuids []string
	for _, held := range holdings(record) {
		uuids = append(uuids, held.gpu)
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}
