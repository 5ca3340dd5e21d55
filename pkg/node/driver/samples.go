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

// settleInterval is how often GPU-seconds are added up. The Sampler's mean covers at least as long.
const settleInterval = 10 * time.Second

// countClaims counts prepared claims, and samples and charges their devices, until ctx ends. It runs
// in the background, and counts a burst of claims once.
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

// countPrepared reads the journal, which other plugin processes change too.
func (d *Driver) countPrepared(ctx context.Context) {
	known := d.claimants.now()
	prepared, err := d.preparer.Prepared(ctx)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot count prepared claims")
		return
	}
	tallies := d.preparer.Journal.Tallies()
	d.journaled.Store(&tallies)
	preparedClaims.Set(float64(len(prepared)))
	shapes := map[string]gpu.Shape{}
	for _, shape := range d.offer.State().Shapes {
		shapes[shape.Name()] = shape
	}
	claims := d.claimants.of(prepared, known)
	// Before the samples of released devices are dropped.
	d.account.Set(account.Holds(prepared, claims, shapes))
	if d.Unsampled {
		return
	}
	if d.Unnamed {
		claims = nil
	}
	d.samples.Set(held(prepared, claims))
}

func (d *Driver) tallies() map[journal.State]journal.Tally {
	if tallies := d.journaled.Load(); tallies != nil {
		return *tallies
	}
	return nil
}

// held lists the devices of prepared claims, each once however many claims share it, without admin
// access. Shares have the figures of their device, as NVML has no others. A destroyed partition is
// left out: its figures would be of its successor. claims have the pods that may be named, by UID.
func held(prepared []journal.Record, claims map[string]account.Claim) []sample.Device {
	var devices []sample.Device
	for _, record := range prepared {
		for _, device := range record.Devices {
			if device.AdminAccess || !device.Exists() {
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
			for _, pod := range claims[record.ClaimUID].Pods {
				devices[i].Pods = append(devices[i].Pods, sample.Pod{Namespace: record.Namespace, Name: pod})
			}
		}
	}
	return devices
}
