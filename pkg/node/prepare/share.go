package prepare

import (
	"context"
	"fmt"
	"sync"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// takeShare reads how the claim's share of a device is used, and how much of it the
// scheduler has given to the claim.
func (a *Assignment) takeShare(result resourceapi.DeviceRequestAllocationResult, driver string) {
	form := a.Shape.Form()
	if a.Admin || form.Shares == 0 {
		return
	}
	if form.Entire() && form.Interval != gpu.DefaultInterval {
		a.Interval = form.Interval
	}
	if form.Served() {
		a.MPS = journal.MPS{
			Daemon:      a.Shape.Name(),
			MemoryBytes: uint64(consumed(result, driver, gpu.CapacityMemory)),
			Cores:       int(consumed(result, driver, gpu.CapacityCores)),
			MultiUser:   true, // the claims of a namespace know nothing of another's users
		}
	}
}

// consumed is how much of a capacity a result has, 0 where it does not say. The
// scheduler copies the slice's name, which may be qualified by the driver's.
func consumed(result resourceapi.DeviceRequestAllocationResult, driver, capacity string) int64 {
	for _, name := range []string{capacity, driver + "/" + capacity} {
		if quantity, found := result.ConsumedCapacity[resourceapi.QualifiedName(name)]; found {
			return max(0, quantity.Value())
		}
	}
	return 0
}

// shares is the number of shares of default size, 0 for a device that the claim has to
// itself.
func (a Assignment) shares() int {
	return a.Shape.Form().Shares
}

// sharedAs is the name under which other claims may have shares of the device, empty
// for one that the claim has to itself.
func (a Assignment) sharedAs() string {
	if a.shares() > 0 {
		return a.Shape.Name()
	}
	return ""
}

// checkDaemons refuses what no container can use: MPS finds its daemon, and a client's
// limits, in the environment, of which a container has one.
func checkDaemons(assignments []Assignment) error {
	for i, a := range assignments {
		for _, b := range assignments[:i] {
			if a.Admin || b.Admin || a.Request != b.Request || !a.served() && !b.served() {
				continue
			}
			if a.shares()+b.shares() == 0 && a.MPS.Daemon == b.MPS.Daemon {
				continue
			}
			return fmt.Errorf("request %q: it was given %s and %s, but a container can be the client of one MPS daemon only, with one share: ask for each in a request of its own, and use them in different containers",
				a.Request, b.Shape.Name(), a.Shape.Name())
		}
	}
	return nil
}

// neighbours asks what other claims have of this node's GPUs, or may have: whatever
// the state of their records, in this boot, without admin access. It reads the records
// once, because what they say of a GPU changes only under its lock, which the caller
// holds.
type neighbours func() ([]journal.Device, error)

// neighbours of a claim.
func (p *Preparer) neighbours(ctx context.Context, claim string) neighbours {
	return sync.OnceValues(func() ([]journal.Device, error) {
		records, err := p.records(ctx)
		return p.heldBeside(claim, records), err
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

// Held are the devices that claims have, or may have, without those that they only
// look at. What they are shapes of must stay offered.
func (p *Preparer) Held(ctx context.Context) ([]journal.Device, error) {
	records, err := p.records(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the devices that claims have: %w", err)
	}
	return p.heldBeside("", records), nil
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

// nameInClaim tells the devices of a claim apart, which can have several shares of one.
func nameInClaim(device, shareID string) string {
	if shareID == "" {
		return device
	}
	return device + "-" + shareID
}
