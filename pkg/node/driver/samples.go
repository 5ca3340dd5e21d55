package driver

import (
	"context"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/account"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/sample"
)

// settleInterval is how often GPU-seconds are added up. The Sampler has the mean of as long at least.
const settleInterval = 10 * time.Second

// countClaims counts the claims that are prepared, and samples and charges what they hold, until ctx
// ends. Nobody waits for it: kubelet has its answer, and a burst of claims is counted once.
func (d *Driver) countClaims(ctx context.Context) error {
	for {
		var settle <-chan time.Time
		if len(d.account.Holds()) > 0 {
			settle = time.After(settleInterval)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.counted:
			d.countPrepared(ctx)
		case <-settle:
			d.account.Settle()
		}
	}
}

// claimsChanged lets countClaims count.
func (d *Driver) claimsChanged() {
	select {
	case d.counted <- struct{}{}:
	default: // it has not yet begun
	}
}

// countPrepared reads the journal, which other plugin processes change too.
func (d *Driver) countPrepared(ctx context.Context) {
	known := d.claimants.now()
	prepared, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Prepared claims cannot be counted")
		return
	}
	tallies := d.preparer.Journal.Tallies()
	d.journaled.Store(&tallies)
	preparedClaims.Set(float64(len(prepared)))
	shapes := map[string]gpu.Shape{}
	for _, shape := range d.offer.State().Shapes {
		shapes[shape.Name()] = shape
	}
	// Before the samples of devices that are no longer held are forgotten.
	d.account.Set(account.Holds(prepared, d.claimants.of(prepared, known), shapes))
	if !d.Unsampled {
		d.samples.Set(held(prepared))
	}
}

func (d *Driver) tallies() map[journal.State]journal.Tally {
	if tallies := d.journaled.Load(); tallies != nil {
		return *tallies
	}
	return nil
}

// held are the devices that prepared claims hold, each once, however many claims share
// it. Who only looks at a device does not hold it. The figures of a share are those of
// what is shared: NVML tells no others. Those of a partition that is gone would be
// of whatever is in its place.
func held(prepared []journal.Record) []sample.Device {
	var devices []sample.Device
	for _, record := range prepared {
		for _, device := range record.Devices {
			if device.AdminAccess || device.Partition.Gone {
				continue
			}
			uuid := device.DeviceUUID()
			same := func(d sample.Device) bool { return d.Name == device.Device && d.UUID == uuid }
			i := slices.IndexFunc(devices, same)
			if i < 0 {
				i = len(devices)
				devices = append(devices, sample.Device{Name: device.Device, GPU: device.UUID, UUID: uuid})
			}
			devices[i].Claims = append(devices[i].Claims, record.ClaimUID)
		}
	}
	return devices
}
