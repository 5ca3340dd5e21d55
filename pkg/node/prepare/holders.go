package prepare

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Held are the devices that claims have, or may have, without those that they only
// look at. What they are shapes of must stay offered.
func (p *Preparer) Held(ctx context.Context) ([]journal.Device, error) {
	found, err := p.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the devices that claims have: %w", err)
	}
	return p.heldBeside("", found), nil
}

// Idle keeps claims from a GPU until release is called, if none has something of it, or may have.
// A claim that comes meanwhile waits.
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

// neighbours of a claim.
func (p *Preparer) neighbours(ctx context.Context, claim string) neighbours {
	return sync.OnceValues(func() ([]journal.Device, error) {
		found, err := p.list(ctx)
		return p.heldBeside(claim, found), err
	})
}

// neighbours asks what other claims have of this node's GPUs, or may have: whatever
// the state of their records, in this boot, without admin access. It reads the records
// once, because what they say of a GPU changes only under its lock, which the caller
// holds.
type neighbours func() ([]journal.Device, error)

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

// siblingsOf are the other shares of the device of a record's request: those of the
// same claim first.
func siblingsOf(record *journal.Record, i int, others neighbours) ([]journal.Device, error) {
	device := record.Devices[i]
	if device.Shares == 0 || device.AdminAccess {
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

// heldBeside are the devices of this boot's records, except a claim's.
func (p *Preparer) heldBeside(claim string, found listing) []journal.Device {
	var devices []journal.Device
	for _, record := range p.ofThisBoot(found) {
		if record.ClaimUID == claim {
			continue
		}
		for _, device := range record.Devices {
			if !device.AdminAccess {
				devices = append(devices, device)
			}
		}
	}
	return devices
}

// ofThisBoot are the records that still hold something. One of a newer version that does not
// say of which boot it is may.
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

// mayNeed reports whether a neighbour is of a newer version and in the place of a device. What it
// needs there is not known, so everything stays for it.
func mayNeed(neighbour, device journal.Device) bool {
	return neighbour.Newer && holdingOf(neighbour).overlaps(holdingOf(device))
}

// sharesWith tells whether both are shares of one device.
func sharesWith(a, b journal.Device) bool {
	return a.Shares > 0 && b.Shares > 0 && !a.AdminAccess && !b.AdminAccess && a.Device == b.Device && a.UUID == b.UUID
}

// sharedName is the name under which other claims may have shares of a recorded device,
// empty for one that its claim has to itself.
func sharedName(device journal.Device) string {
	if device.Shares > 0 {
		return device.Device
	}
	return ""
}
