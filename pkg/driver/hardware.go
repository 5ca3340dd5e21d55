package driver

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/nvml"
	"github.com/mica-gpu/mica/pkg/prepare"
	"github.com/mica-gpu/mica/pkg/slice"
)

const (
	firstHardwareRetry = time.Second
	maxHardwareRetry   = 15 * time.Second
	// maxRereadRetry is longer: a GPU that is broken for good is asked for ever.
	maxRereadRetry = time.Minute
)

// discovery is what was found when the GPUs were last offered.
type discovery struct {
	node       gpu.Node
	incomplete bool
	why        string
}

// watchHardware opens the NVIDIA driver and offers its GPUs. A node without a
// driver or GPU is not an error: the plugin says so once, publishes nothing,
// and looks again. It fails where only a new process can find the driver.
func (d *Driver) watchHardware(ctx context.Context) error {
	log := klog.FromContext(ctx)
	retry := firstHardwareRetry
	said := ""
	for {
		err := d.openHardware(ctx)
		if err == nil {
			return d.reread(ctx)
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

// reread looks again at GPUs that could not be read, until all can be.
func (d *Driver) reread(ctx context.Context) error {
	retry := firstHardwareRetry
	for d.found.incomplete {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(retry):
		}
		retry = min(2*retry, maxRereadRetry)
		if err := d.offer(ctx, d.hardware); err != nil {
			klog.FromContext(ctx).V(2).Info("The GPUs cannot be read again; those found before stay offered", "err", err, "retryIn", retry)
		}
	}
	return nil
}

// openHardware opens the driver, offers what it finds, and keeps it open until
// closeHardware: claims in flight need it while the process is stopping.
func (d *Driver) openHardware(ctx context.Context) error {
	hardware, err := d.Open(ctx)
	if err != nil {
		return err
	}
	if err := d.offer(ctx, hardware); err != nil {
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

func (d *Driver) offer(ctx context.Context, hardware Hardware) error {
	log := klog.FromContext(ctx)
	node, unreadable, err := hardware.Discover()
	if err != nil {
		return err
	}
	found := discovery{node: node, incomplete: len(unreadable) > 0, why: fmt.Sprint(unreadable)}
	if reflect.DeepEqual(found, d.found) {
		return nil
	}
	for _, err := range unreadable {
		log.Error(err, "A GPU cannot be read and is not offered; the plugin keeps looking")
	}
	if len(node.GPUs) == 0 {
		return fmt.Errorf("the NVIDIA driver %s is loaded but has no usable GPU", node.DriverVersion)
	}
	shapes := gpu.Shapes(node.GPUs)
	pool, err := slice.Pool(node, shapes)
	if err != nil {
		return err
	}
	d.preparer.SetNode(prepare.Node{
		Offer: prepare.NewOffer(d.Name, d.NodeName, shapes),
		Edits: hardware.Edits(),
	})
	d.wakeReconcile()
	d.found = found
	log.Info("Offering GPUs", "driverVersion", node.DriverVersion, "gpus", len(node.GPUs), "devices", len(shapes))
	d.publisher.set(resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.NodeName: pool}})
	return nil
}
