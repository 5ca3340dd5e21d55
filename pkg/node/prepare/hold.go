package prepare

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// releasePoll is the time between two looks at the journal while another claim holds a GPU.
const releasePoll = 50 * time.Millisecond

// hold locks the GPUs of a claim that is to be prepared, and makes sure that no other claim
// holds a part of them that it needs. The driver is the last line of defense against two
// workloads on one exclusive device: a pod that was deleted by force can leave the API
// server before kubelet has stopped its containers (kubernetes/kubernetes#141471).
//
// It gives kubelet time to unprepare the other claim, and gives up the locks meanwhile, which
// that takes. After that time, if the API server confirms that the other claim no longer has
// the device, kubelet has lost track of it, and it is released here. hold returns what the
// other claims hold then.
func (p *Preparer) hold(ctx context.Context, wanted journal.Record) (others neighbours, release func(), err error) {
	uuids := gpusHeldBy(wanted)
	if len(uuids) == 0 { // admin access changes nothing, so it excludes no claim
		return func() ([]journal.Device, error) { return nil, nil }, func() {}, nil
	}
	patience := time.NewTimer(p.ReleaseWait)
	defer patience.Stop()
	over := false
	for {
		unlock, err := p.lockGPUs(ctx, uuids)
		if err != nil {
			return nil, nil, err
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
			if err := p.takeOver(ctx, wanted, *holder, found); err != nil {
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

// holder finds the record of another claim that holds something that the wanted one needs.
// An intent counts, also one of a share of the same device: its effects may have happened.
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

// takeOver releases a claim that is in the way, if it is gone. It never releases a claim that
// a newer version has prepared.
func (p *Preparer) takeOver(ctx context.Context, wanted, holder journal.Record, found listing) error {
	conflict := fmt.Sprintf("it was given a GPU (%v) that claim %s/%s (UID %s)", gpusHeldBy(wanted), holder.Namespace, holder.Name, holder.ClaimUID)
	for _, bad := range found.newer {
		if bad.ClaimUID == holder.ClaimUID {
			return fmt.Errorf("%s holds or may hold: %w", conflict, bad)
		}
	}
	stale, err := p.stale(ctx, holder)
	switch {
	case err != nil:
		return fmt.Errorf("%s held, and it is not known whether that claim still exists: %w", conflict, err)
	case !stale && holder.State == journal.Intent && shareDevices(wanted, holder):
		return fmt.Errorf("%s shares and that is being prepared or released, which takes longer than it should: see the log of this plugin for the reason; kubelet tries again", conflict)
	case !stale:
		return fmt.Errorf("%s still holds on this node: delete one of the two pods", conflict)
	}
	klog.FromContext(ctx).Info("Releasing a claim that is gone and that kubelet did not unprepare", "claim", klog.KRef(holder.Namespace, holder.Name), "uid", holder.ClaimUID)
	// Bounded, because the other claim may be waiting for this one.
	unprepare, cancel := context.WithTimeout(ctx, takeOverLimit)
	defer cancel()
	return p.unprepare(unprepare, types.UID(holder.ClaimUID))
}

// shareDevices reports whether both claims have shares of one device.
func shareDevices(a, b journal.Record) bool {
	needed := holdings(a)
	return slices.ContainsFunc(holdings(b), func(held holding) bool { return slices.ContainsFunc(needed, held.coexists) })
}

// stale reports whether a record's claim no longer exists or no longer has the recorded
// devices, as the API server has it.
func (p *Preparer) stale(ctx context.Context, record journal.Record) (bool, error) {
	claim, err := p.claimOf(ctx, nameOf(record), types.UID(record.ClaimUID))
	if err != nil {
		return false, err
	}
	return claim == nil || !p.recordsAllocation(record, claim), nil
}

// claimOf reads a claim. It returns nil if the claim is gone, has no known name, or another
// claim has its name.
func (p *Preparer) claimOf(ctx context.Context, name types.NamespacedName, uid types.UID) (*resourceapi.ResourceClaim, error) {
	if name.Name == "" {
		return nil, nil //nolint:nilnil // unknown is gone
	}
	claim, err := p.Claims.Get(ctx, name)
	if apierrors.IsNotFound(err) || err == nil && claim.UID != uid {
		return nil, nil //nolint:nilnil // gone is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read the claim from the API server: %w", err)
	}
	return claim, nil
}

// holding is a part of a GPU that a claim holds, in memory slices, or all of it.
type holding struct {
	// gpu is empty if it may be any.
	gpu string
	// sharedAs is the device's name if other claims may have shares of it, or empty.
	sharedAs string
	gpu.Placement
}

// coexists reports whether both are shares of one device.
func (h holding) coexists(other holding) bool {
	return h.sharedAs != "" && h.sharedAs == other.sharedAs && h.gpu == other.gpu
}

func (h holding) overlaps(other holding) bool {
	return (h.gpu == other.gpu || h.gpu == "") && h.Placement.Overlaps(other.Placement)
}

func holdingOf(device journal.Device) holding {
	held := holding{gpu: device.UUID, Placement: device.Form.Placement}
	if device.Form.Shared() {
		held.sharedAs = device.Device
	}
	return held
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

// gpusHeldBy are the UUIDs of the GPUs that a recorded claim holds parts of, sorted.
func gpusHeldBy(record journal.Record) []string {
	return gpusOf(record, func(d journal.Device) bool { return !d.AdminAccess })
}

// gpusOf are the UUIDs of the GPUs of the devices that match, sorted.
func gpusOf(record journal.Record, match func(journal.Device) bool) []string {
	var uuids []string
	for _, device := range record.Devices {
		if match(device) {
			uuids = append(uuids, device.UUID)
		}
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}

// neighbours returns what other claims hold, or may hold, of this node's GPUs in this boot.
// It reads the records once: what they say of a GPU changes only under the GPU's lock,
// which the caller holds.
type neighbours func() ([]journal.Device, error)

func (p *Preparer) neighbours(ctx context.Context, claim string) neighbours {
	return sync.OnceValues(func() ([]journal.Device, error) {
		found, err := p.list(ctx)
		return p.heldBeside(claim, found), err
	})
}

// some are the neighbours that match.
func (n neighbours) some(match func(journal.Device) bool) ([]journal.Device, error) {
	devices, err := n()
	var matching []journal.Device
	for _, device := range devices {
		if match(device) {
			matching = append(matching, device)
		}
	}
	return matching, err
}

// siblingsOf are the other shares of the device of a record's request: those of the same
// claim first.
func siblingsOf(record *journal.Record, i int, others neighbours) ([]journal.Device, error) {
	device := record.Devices[i]
	if device.AdminAccess || !device.Form.Shared() {
		return nil, nil
	}
	var siblings []journal.Device
	for _, earlier := range record.Devices[:i] {
		if sharesWith(earlier, device) {
			siblings = append(siblings, earlier)
		}
	}
	elsewhere, err := others.some(func(d journal.Device) bool { return sharesWith(d, device) })
	return append(siblings, elsewhere...), err
}

// sharesWith reports whether both are shares of one device.
func sharesWith(a, b journal.Device) bool {
	return !a.AdminAccess && !b.AdminAccess && holdingOf(a).coexists(holdingOf(b))
}

// mayNeed reports whether a neighbour was prepared by a newer version in the place of a
// device. Its needs there are unknown, so everything stays for it.
func mayNeed(neighbour, device journal.Device) bool {
	return neighbour.Newer && holdingOf(neighbour).overlaps(holdingOf(device))
}

// heldBeside are the devices in this boot's records, except a claim's.
func (p *Preparer) heldBeside(claim string, found listing) []journal.Device {
	var devices []journal.Device
	for _, record := range p.ofThisBoot(found) {
		for _, device := range record.Devices {
			if record.ClaimUID != claim && !device.AdminAccess {
				devices = append(devices, device)
			}
		}
	}
	return devices
}

// ofThisBoot are the records that still hold something. A newer version's record without a
// boot ID may.
func (p *Preparer) ofThisBoot(found listing) []journal.Record {
	var current []journal.Record
	for _, record := range found.records {
		if record.BootID == p.BootID {
			current = append(current, record)
		}
	}
	for _, bad := range found.newer {
		if bad.Record.BootID == p.BootID || bad.Record.BootID == "" {
			current = append(current, bad.Record)
		}
	}
	return current
}

// Held are the devices that claims hold, or may hold, without those of admin access. Their
// shapes must stay offered.
func (p *Preparer) Held(ctx context.Context) ([]journal.Device, error) {
	found, err := p.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the devices that claims hold: %w", err)
	}
	return p.heldBeside("", found), nil
}

// Idle keeps claims from a GPU until release is called, if no claim holds or may hold a part
// of it. A claim that comes meanwhile waits.
func (p *Preparer) Idle(ctx context.Context, uuid string) (release func(), idle bool, err error) {
	release, err = p.lockGPUs(ctx, []string{uuid})
	if err != nil {
		return nil, false, err
	}
	held, err := p.Held(ctx)
	if err != nil || slices.ContainsFunc(held, func(d journal.Device) bool { return d.On(uuid) }) {
		release()
		return nil, false, err
	}
	return release, true, nil
}
