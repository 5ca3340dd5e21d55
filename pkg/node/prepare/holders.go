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
	records, err := p.records(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the devices that claims have: %w", err)
	}
	return p.heldBeside("", records), nil
}

// Idle keeps claims from a GPU until release is called, if none has something of it, or may have.
// A claim that comes meanwhile waits.
func (p *Preparer) Idle(ctx context.Context, uuid string) (release func(), idle bool, err error) {
	release, err = p.lockGPUs(ctx, []string{uuid})
	if err != nil {
		return nil, false, err
	}
	held, err := p.Held(ctx)
	if err != nil || slices.ContainsFunc(held, func(d journal.Device) bool { return d.UUID == uuid }) {
		release()
		return nil, false, err
	}
	return release, true, nil
}

// neighbours of a claim.
func (p *Preparer) neighbours(ctx context.Context, claim string) neighbours {
	return sync.OnceValues(func() ([]journal.Device, error) {
		records, err := p.records(ctx)
		return p.heldBeside(claim, records), err
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
func (p *Preparer) heldBeside(claim string, records []journal.Record) []journal.Device {
	var devices []journal.Device
	for _, record := range records {
		if record.BootID != p.BootID || record.ClaimUID == claim {
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
