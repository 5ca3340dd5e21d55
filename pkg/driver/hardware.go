package driver

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/prepare"
	"github.com/mica-gpu/mica/pkg/slice"
)

const (
	firstHardwareRetry = time.Second
	maxHardwareRetry   = 15 * time.Second
)

// watchHardware opens the NVIDIA driver and offers its GPUs. A node without a
// driver or GPU is not an error: the plugin says so once, publishes nothing,
// and looks again.
func (d *Driver) watchHardware(ctx context.Context) error {
	log := klog.FromContext(ctx)
	retry := firstHardwareRetry
	said := ""
	for {
		err := d.openHardware(ctx)
		if err == nil {
			return nil
		}
		if err.Error() != said {
			said = err.Error()
			log.Info("This node offers no GPU for now; the plugin keeps looking", "reason", said)
			d.publisher.set(resourceslice.DriverResources{})
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
		retry = min(2*retry, maxHardwareRetry)
	}
}

// openHardware opens the driver, offers what it finds, and keeps it open until
// closeHardware: claims in flight need it while the process is stopping.
func (d *Driver) openHardware(ctx context.Context) error {
	hardware, err := d.Open(ctx)
	if err != nil {
		return err
	}
	if err := d.offerAll(ctx, hardware); err != nil {
		_ = hardware.Close() // the reason to close it is the error that counts
		return err
	}
	d.hardware = hardware
	return nil
}

func (d *Driver) closeHardware(ctx context.Context) {
	if d.hardware == nil {
		return
	}
	if err := d.hardware.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Closing the NVIDIA driver did not work")
	}
}

// offerAll reads all of the hardware and offers it.
func (d *Driver) offerAll(ctx context.Context, hardware Hardware) error {
	d.offering = nil
	err := d.offer(ctx, hardware, func() (gpu.Node, []error, error) {
		node, unreadable, err := hardware.Discover()
		if err != nil {
			return node, nil, err
		}
		if len(node.GPUs) == 0 {
			return node, nil, fmt.Errorf("the NVIDIA driver %s is loaded but has no usable GPU", node.DriverVersion)
		}
		d.seen = node
		d.seen.GPUs = slices.Clone(node.GPUs)
		return node, unreadable, nil
	})
	if err != nil {
		return err
	}
	sayPredictions(ctx, d.seen.GPUs)
	return nil
}

// offer offers what look sees, less the instances that were made here, which
// claims hold. It does nothing when the same is offered already.
func (d *Driver) offer(ctx context.Context, hardware Hardware, look func() (gpu.Node, []error, error)) error {
	node, unreadable, err := d.preparer.Discover(ctx, look)
	if err != nil {
		return err
	}
	for _, err := range unreadable {
		klog.FromContext(ctx).Error(err, "A GPU cannot be read and is not offered")
	}
	shapes := gpu.Shapes(node.GPUs)
	offering := identities(shapes)
	if d.offering != nil && slices.Equal(offering, d.offering) {
		return nil
	}
	pool, err := slice.Pool(node, shapes)
	if err != nil {
		return err
	}
	d.offering = offering
	d.preparer.SetNode(prepare.Node{
		Offer: prepare.NewOffer(d.Name, d.NodeName, shapes),
		Edits: hardware.Edits(),
		MIG:   hardware.MIG(),
	})
	select {
	case d.offered <- struct{}{}:
	default: // reconcile has not yet seen the last one
	}
	klog.FromContext(ctx).Info("Offering GPUs", "driverVersion", node.DriverVersion, "gpus", len(node.GPUs), "devices", len(shapes))
	sayObstacles(ctx, node.GPUs)
	d.publisher.set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.NodeName: pool}})
	return nil
}
