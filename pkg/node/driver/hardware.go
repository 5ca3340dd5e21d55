package driver

import (
	"context"
	"errors"
	"math"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/offer"
	"github.com/mica-gpu/mica/pkg/node/sample"
)

// hardwareRetries are the delays between attempts to open an NVIDIA driver.
var hardwareRetries = wait.Backoff{Duration: time.Second, Factor: 2, Cap: 15 * time.Second, Steps: math.MaxInt}

// checkInterval is how long the removal of a driver may go unnoticed.
const checkInterval = 5 * time.Second

// watchHardware offers and samples GPUs, as long as there are any, until ctx ends. It
// returns an error if only a new process can continue.
func (d *Driver) watchHardware(ctx context.Context) error {
	if err := d.awaitHardware(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	if !d.Unsampled {
		group.Go(func() error {
			return d.samples.Run(ctx, sample.Hardware{
				Open:  d.hardware.Meter,
				Units: func() []sample.Unit { return sample.Units(d.offer.State().Node.GPUs) },
				Idle:  d.offer.Used,
			})
		})
	}
	group.Go(func() error { return d.offer.Watch(ctx) })
	group.Go(func() error { return d.monitor.Run(ctx, d.hardware.Health) })
	group.Go(func() error { return d.watchReplacement(ctx) })
	return group.Wait()
}

// watchReplacement ends the process when the driver is replaced or removed: a process cannot load a
// second library.
func (d *Driver) watchReplacement(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, checkInterval, true, func(context.Context) (bool, error) {
		return false, d.hardware.Check()
	})
}

// awaitHardware opens the NVIDIA driver and offers its GPUs. Without a driver or GPU it logs that
// once, publishes nothing, and retries. It returns an error if only a new process can find the driver.
func (d *Driver) awaitHardware(ctx context.Context) error {
	reported := ""
	return hardwareRetries.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		err := d.openHardware(ctx)
		if err == nil {
			return true, nil
		}
		if errors.Is(err, nvml.ErrReplaced) {
			return false, err
		}
		d.preparer.NoDriver()
		if err.Error() != reported {
			reported = err.Error()
			klog.FromContext(ctx).Info("This node offers no GPU for now; the plugin keeps looking", "reason", reported)
			d.publisher.Set(resourceslice.DriverResources{})
		}
		return false, nil
	})
}

// openHardware opens the driver and offers its GPUs. The driver stays open until closeHardware, for
// claims in flight at shutdown.
func (d *Driver) openHardware(ctx context.Context) error {
	hardware, err := d.Open(ctx)
	if err != nil {
		return err
	}
	if d.daemons != nil {
		hardware.Tools.Daemons = d.daemons
	}
	offered := offer.Hardware{GPUs: hardware.GPUs, Edits: hardware.Edits, Tools: hardware.Tools}
	if err := d.offer.Start(ctx, offered); err != nil {
		_ = hardware.Close() // the reason to close it is the error that counts
		return err
	}
	d.hardware = hardware
	return nil
}

func (d *Driver) closeHardware(ctx context.Context) {
	if d.hardware.Close == nil {
		return // it was never open
	}
	if err := d.hardware.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot close the NVIDIA driver")
	}
}
