package prepare

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/node/cdi"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Prepared lists the claims that are prepared on this node.
func (p *Preparer) Prepared(ctx context.Context) ([]journal.Record, error) {
	records, err := p.records(ctx)
	return slices.DeleteFunc(records, func(r journal.Record) bool { return !p.current(r) }), err
}

// recorded is the record of a claim, whose lock the caller holds. One that was
// lost is put back from its copy; where there is no copy either, it is empty.
func (p *Preparer) recorded(ctx context.Context, claim types.UID) (journal.Record, error) {
	record, found, loss := p.Journal.Get(string(claim))
	var corrupt *journal.Corrupt
	if found || loss != nil && !errors.As(loss, &corrupt) || corrupt != nil && corrupt.Newer {
		return record, loss
	}
	record, found, err := p.recalled(claim)
	switch {
	case err != nil:
		return journal.Record{}, err
	case !found && loss != nil:
		p.reportDamage()
		klog.FromContext(ctx).Error(loss, "A claim's record is unusable and is removed", "uid", claim)
		return journal.Record{}, recordRemoved.corrected(p.Journal.Delete(string(claim)))
	case found:
		klog.FromContext(ctx).Error(loss, "A claim's record is lost, putting it back from its CDI file", "claim", klog.KRef(record.Namespace, record.Name), "uid", claim)
		if err := recordRestored.corrected(p.Journal.Put(ctx, record)); err != nil {
			// The copy serves as well, as long as it is there.
			klog.FromContext(ctx).Error(err, "A claim's record could not be put back", "uid", claim)
		}
	}
	return record, nil
}

// records are all records, those that were lost as their copies have them.
func (p *Preparer) records(ctx context.Context) ([]journal.Record, error) {
	listed, err := p.list(ctx)
	return listed.records, err
}

// listing is what the journal and the copies of its records say.
type listing struct {
	records []journal.Record
	// newer are of a newer version. Their claims hold what they hold.
	newer []*journal.Corrupt
	// damaged are the claims whose record is damaged.
	damaged []types.UID
}

// list reports each file that cannot be used once, whoever asks first.
func (p *Preparer) list(ctx context.Context) (listing, error) {
	// Before the journal: a lost record is put back before its copy goes.
	specs, err := p.CDI.Claims()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return listing{}, err
	}
	var found listing
	records, corrupt, err := p.Journal.List()
	for _, bad := range corrupt {
		switch {
		case bad.Newer && !bad.Known:
			klog.FromContext(ctx).Error(bad, "A claim is neither prepared nor unprepared")
		case !bad.Newer && !bad.Known:
			p.reportDamage()
			klog.FromContext(ctx).Error(bad, "A claim's record is unusable; it is put back from its CDI file, or the claim is prepared anew, where possible")
		}
		switch {
		case bad.Newer:
			found.newer = append(found.newer, bad)
		case bad.ClaimUID != "":
			found.damaged = append(found.damaged, types.UID(bad.ClaimUID))
		}
	}
	if err != nil {
		return listing{}, err
	}
	for _, claim := range specs {
		if slices.ContainsFunc(records, func(r journal.Record) bool { return r.ClaimUID == string(claim) }) {
			continue
		}
		lost, found, err := p.recalled(claim)
		if err == nil && !found { // it may have been put back since
			lost, found, err = p.Journal.Get(string(claim))
		}
		if corrupt := (*journal.Corrupt)(nil); err != nil && !errors.As(err, &corrupt) {
			return listing{}, fmt.Errorf("look for the record of claim %s: %w", claim, err)
		}
		if found {
			records = append(records, lost)
		}
	}
	found.records = records
	return found, nil
}

// recalled reads the copy of a claim's record. One that is damaged or from another
// boot is as good as none.
func (p *Preparer) recalled(claim types.UID) (record journal.Record, found bool, err error) {
	spec, err := p.CDI.Read(claim)
	if err != nil {
		return journal.Record{}, false, err
	}
	record, err = journal.Decode(string(claim), []byte(spec.Record))
	if err != nil || !p.current(record) {
		return journal.Record{}, false, nil
	}
	return record, true, nil
}

// copied is the copy of a record for a CDI file, which is written when everything is
// done, though before the record says so. Without it, a partition whose record is lost
// would pass for somebody else's: never unmade, in the way when its claim is prepared
// anew, and given to a second claim.
func copied(record journal.Record) (string, error) {
	record.State = journal.Prepared
	data, err := journal.Encode(record)
	return string(data), err
}

func (p *Preparer) reportDamage() {
	select {
	case p.damaged <- struct{}{}:
	default: // Reconcile is due already
	}
}

// current tells whether a record speaks of this boot.
func (p *Preparer) current(record journal.Record) bool {
	return record.State == journal.Prepared && record.BootID == p.BootID
}

// recordsAllocation tells whether the record is of exactly the devices that the
// claim has here now: a claim that was released and allocated again can have
// others, or more.
func (p *Preparer) recordsAllocation(record journal.Record, claim *resourceapi.ResourceClaim) bool {
	return len(record.Devices) > 0 && slices.EqualFunc(p.results(claim), record.Devices, func(r resourceapi.DeviceRequestAllocationResult, d journal.Device) bool {
		return r.Request == d.Request && r.Pool == d.Pool && r.Device == d.Device && string(ptr.Deref(r.ShareID, "")) == d.ShareID
	})
}

// results are those of a claim that are prepared here, in their order.
func (p *Preparer) results(claim *resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if claim.Status.Allocation == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(claim.Status.Allocation.Devices.Results), func(r resourceapi.DeviceRequestAllocationResult) bool {
		return r.Driver != p.Driver || r.Pool != p.Pool
	})
}

func identify(claim *resourceapi.ResourceClaim) cdi.Claim {
	return cdi.Claim{
		UID:            claim.UID,
		NamespacedName: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name},
	}
}

// claimIn is the claim that a record is of.
func claimIn(record journal.Record) cdi.Claim {
	return cdi.Claim{
		UID:            types.UID(record.ClaimUID),
		NamespacedName: types.NamespacedName{Namespace: record.Namespace, Name: record.Name},
	}
}

// nameInClaim tells the devices of a claim apart, which can have several shares of one.
func nameInClaim(device, shareID string) string {
	if shareID == "" {
		return device
	}
	return device + "-" + shareID
}
