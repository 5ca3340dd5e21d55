package prepare

import (
	"fmt"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/nvml"
)

// Two plugins of a rolling update prepare and unprepare shares of the same devices at
// once: who has one finds what it needs for as long as it has it, and nothing is left
// after the last one.
func TestTwoPluginsWithSharesOfOneDevice(t *testing.T) {
	for _, device := range sharedDevices {
		for _, stays := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, one stays=%t", device, stays), func(t *testing.T) {
				t.Parallel()
				r := newShareRig(t)
				waiting := func(o *Options) { o.ReleaseWait = 10 * time.Second }
				plugins := []*Preparer{r.startShares(t, nil, waiting), r.startShares(t, nil, waiting)}
				stayer := r.sharing("stayer", device)
				var held []journal.Device
				if stays {
					held = prepare(t, plugins[0], stayer)
				}
				var group sync.WaitGroup
				for i := range 4 {
					claim := r.sharing(fmt.Sprint("c", i), device)
					group.Go(func() {
						for round := range 4 {
							r.liveOn(t, plugins[(i+round)%2], plugins[(i+round+1)%2], claim)
							r.expectServed(t, held)
						}
					})
				}
				group.Wait()
				unprepare(t, plugins[1], stayer)
				r.expectShares(t, plugins[0])
			})
		}
	}
}

// liveOn prepares a claim with one plugin and unprepares it with another.
func (r *shareRig) liveOn(t *testing.T, first, second *Preparer, claim *resourceapi.ResourceClaim) {
	t.Helper()
	devices, err := first.Prepare(testContext(t), claim)
	if err != nil {
		t.Error(err)
	}
	r.expectServed(t, devices)
	if err := second.Unprepare(testContext(t), claim.UID); err != nil {
		t.Error(err)
	}
}

// expectServed finds what shares that are held need.
func (r *shareRig) expectServed(t *testing.T, devices []journal.Device) {
	t.Helper()
	for _, device := range devices {
		if hasStep(device, setTimeSlice) && r.intervals.all()[device.UUID] != dataOf[timeSlice](device, setTimeSlice).Interval {
			t.Errorf("%s: its GPU has the interval %q", device.Device, r.intervals.all()[device.UUID])
		}
		if device.PartUUID != "" && !r.migDeviceExists(device.PartUUID) {
			t.Errorf("%s: its partition %s is gone", device.Device, device.PartUUID)
		}
		if !hasStep(device, runDaemon) {
			continue
		}
		if _, runs := r.daemons.all()[dataOf[client](device, runDaemon).Daemon]; !runs {
			t.Errorf("%s: its daemon does not run", device.Device)
		}
		if mode, err := r.library.ComputeMode(device.UUID); device.Form.Entire() && (err != nil || mode != nvml.ExclusiveProcess) {
			t.Errorf("%s: its GPU has the compute mode %s, %v", device.Device, mode, err)
		}
	}
}
