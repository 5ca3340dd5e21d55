package driver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/nvml"
	"github.com/mica-gpu/mica/pkg/node/prepare"
	"github.com/mica-gpu/mica/pkg/slice"
)

const (
	firstHardwareRetry = time.Second
	maxHardwareRetry   = 15 * time.Second
	// maxRereadRetry is longer: a GPU that is broken for good is asked for ever.
	maxRereadRetry = time.Minute
)

// watchHardware offers the GPUs, and samples those that are held, from when there are
// any until ctx ends.
func (d *Driver) watchHardware(ctx context.Context) error {
	if err := d.awaitHardware(ctx); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return d.samples.Run(ctx, d.hardware.Meter) })
	group.Go(func() error { return d.watchGPUs(ctx) })
	return group.Wait()
}

// awaitHardware opens the NVIDIA driver and offers its GPUs. A node without a
// driver or GPU is not an error: the plugin says so once, publishes nothing,
// and looks again. It fails where only a new process can find the driver.
func (d *Driver) awaitHardware(ctx context.Context) error {
	log := klog.FromContext(ctx)
	retry := firstHardwareRetry
	said := ""
	for {
		err := d.openHardware(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, nvml.ErrReplaced) {
			return err
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

// watchGPUs keeps the offer right: it looks again at GPUs that could not be read,
// until all can be, at what somebody else does to MIG, at policies that change, and
// at shapes that are withdrawn.
func (d *Driver) watchGPUs(ctx context.Context) error {
	retry := firstHardwareRetry
	said := ""
	for {
		wait, look := d.nextLook(), d.offerChanges
		if d.unread != "" && retry < wait {
			wait, look = retry, d.offerAll
			retry = min(2*retry, maxRereadRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.reconsider:
			look = d.offerChanges
		case <-time.After(wait):
		}
		err := look(ctx, d.hardware)
		switch {
		case err == nil:
			said = ""
		case err.Error() != said && ctx.Err() == nil:
			said = err.Error()
			klog.FromContext(ctx).Error(err, "The GPUs cannot be read again; what was seen last stays offered")
		}
	}
}

// never is a wait that something else ends.
const never = time.Duration(math.MaxInt64)

// nextLook is how long the offer may be left alone. GPUs that cannot be read are
// asked for by all of them, and more slowly.
func (d *Driver) nextLook() time.Duration {
	wait := never
	// Another process may have released what was passing, and somebody may have
	// installed what a policy lacked.
	if d.unread == "" && (d.partitionable() || d.passing.Load() || d.applied.refused) {
		wait = lookInterval
	}
	if !d.until.IsZero() {
		wait = min(wait, max(time.Until(d.until), 0))
	}
	return wait
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
	return d.offer(ctx, hardware, func() (gpu.Node, error) {
		node, unreadable, err := hardware.Discover()
		if err != nil {
			return node, err
		}
		unread := ""
		if err := errors.Join(unreadable...); err != nil {
			if unread = err.Error(); unread != d.unread {
				klog.FromContext(ctx).Error(err, "A GPU cannot be read and is not offered; the plugin keeps looking")
			}
		}
		if len(node.GPUs) == 0 {
			return node, fmt.Errorf("the NVIDIA driver %s is loaded but has no usable GPU", node.DriverVersion)
		}
		d.unread = unread
		d.seen = node
		d.seen.GPUs = slices.Clone(node.GPUs)
		sayPredictions(ctx, d.seen.GPUs)
		return node, nil
	})
}

// tools are the hardware's and the node's supervisor of MPS, where there is one.
func (d *Driver) tools(hardware Hardware) prepare.Tools {
	tools := hardware.Tools()
	if d.daemons != nil {
		tools.Daemons = d.daemons
	}
	return tools
}

// offer offers what look sees and the policies say, less the instances that were
// made here, which claims hold. It does nothing when the same is offered already.
func (d *Driver) offer(ctx context.Context, hardware Hardware, look func() (gpu.Node, error)) error {
	node, err := d.preparer.Discover(ctx, look)
	if err != nil {
		return err
	}
	held, err := d.preparer.Held(ctx)
	if err != nil {
		return err
	}
	policies, known := d.policiesFor(ctx, node)
	history, next := d.history.next(node.GPUs, policies, held, time.Now())
	if known {
		d.history, d.until = history, next.until
		d.passing.Store(next.passing)
	}
	for _, err := range next.unknown {
		klog.FromContext(ctx).Error(err, "A device that a claim has is not offered")
	}
	offering := identities(next)
	if !known {
		offering = append(offering, "unpublished")
	}
	if d.offering != nil && slices.Equal(offering, d.offering) {
		return nil
	}
	d.preparer.SetNode(prepare.Node{
		Offer: prepare.NewOffer(d.Name, d.NodeName, next.shapes),
		Edits: hardware.Edits(),
		Tools: d.tools(hardware),
	})
	d.offering = offering
	d.wakeReconcile()
	if !known {
		return nil // claims that are prepared can be taken back; new ones come when it is published
	}
	klog.FromContext(ctx).Info("Offering GPUs", "driverVersion", node.DriverVersion, "gpus", len(node.GPUs), "devices", len(next.shapes), "withdrawn", len(next.withdrawn))
	sayObstacles(ctx, node.GPUs)
	d.publisher.set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.NodeName: slice.Pool(node, next.shapes, next.withdrawn)}})
	return nil
}
