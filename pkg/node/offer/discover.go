package offer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/node/prepare"
)

// sight is the result of one look at the GPUs.
type sight struct {
	// node has all instances.
	node gpu.Node
	// unreadable names the GPUs that could not be read, nil if all could.
	unreadable error
}

// look reads the GPUs; before is the last result.
type look func(before gpu.Node) (sight, error)

// lookAtAll reads everything. It leaves out unreadable GPUs, and returns an error if there is no GPU.
func (o *Offer) lookAtAll(gpu.Node) (sight, error) {
	node, unreadable, err := o.hardware.GPUs.Discover()
	if err == nil && len(node.GPUs)+len(unreadable) == 0 {
		err = fmt.Errorf("the NVIDIA driver %s is loaded but has no GPU: see the kernel's log for messages of NVRM", node.DriverVersion)
	}
	return sight{node, errors.Join(unreadable...)}, err
}

func inOneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// lookAgain reads what changes while the driver is loaded. Unreadable GPUs stay as they were.
func (o *Offer) lookAgain(before gpu.Node) (sight, error) {
	node := before
	var err error
	node.GPUs, err = o.hardware.GPUs.Refresh(before.GPUs)
	return sight{node, err}, nil
}

// findings are the result of discover.
type findings struct {
	sight
	// free is the node without the instances made for claims, which are no obstacle to the offer.
	free gpu.Node
	// held are the devices that claims hold, or may hold.
	held []journal.Device
}

// lookAttempts bounds looks that contradict each other.
const lookAttempts = 3

// discover looks at the GPUs and separates instances made for claims from others. Claims may be
// prepared and unprepared meanwhile, also by another process. A record is written before its instance
// is created, and removed after it is destroyed. So an instance that exists both before and after the
// records are read, and that no record names, is foreign. The records are read again after the second
// look, because an instance that replaces another may have its UUID. Contradicting looks are repeated.
func (o *Offer) discover(ctx context.Context, look look) (found findings, err error) {
	found.node = o.seen
	var sure bool
	for range lookAttempts {
		if found, sure, err = o.lookTwice(ctx, look, found.node); sure || err != nil {
			break
		}
	}
	o.foreign = nil // a claim's instance may be in the place of one that an earlier look found
	if sure {
		o.foreign = found.free.GPUs
	}
	if err == nil {
		o.noteGone(ctx, found)
	}
	return found, err
}

// noteGone records destroyed partitions, so that an administrator's partition in the same place is not
// mistaken for a claim's.
func (o *Offer) noteGone(ctx context.Context, found findings) {
	if !slices.ContainsFunc(found.held, func(d journal.Device) bool { return prepare.Missing(d, found.node.GPUs) }) {
		return
	}
	if err := o.Claims.Seen(ctx, found.node.GPUs); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot record that a claim's partition was destroyed; trying again with the next look")
	}
}

// lookTwice is unsure if an instance's devices differ the second time, as when another claim's device
// changes while NVML lists them.
func (o *Offer) lookTwice(ctx context.Context, look look, before gpu.Node) (found findings, sure bool, err error) {
	first, err := look(before)
	if err != nil {
		return findings{}, false, err
	}
	held, err := o.Claims.Held(ctx)
	if err != nil {
		return findings{}, false, err
	}
	others := without(first.node, madeFor(held))
	doubtful := without(others, func(g gpu.GPU, instance gpu.Instance) bool {
		_, same := seen(o.foreign, g.UUID, instance) // a place is only offered after a look that showed it free
		return same && len(instance.Devices) > 0
	})
	if !slices.ContainsFunc(doubtful.GPUs, hasInstances) {
		return findings{first, others, held}, true, nil
	}
	second, err := look(first.node)
	if err != nil {
		return findings{}, false, err
	}
	if held, err = o.Claims.Held(ctx); err != nil {
		return findings{}, false, err
	}
	sure = true
	free := without(without(second.node, madeFor(held)), func(g gpu.GPU, instance gpu.Instance) bool {
		there, same := seen(others.GPUs, g.UUID, instance)
		sure = sure && there == same
		return !same
	})
	klog.FromContext(ctx).V(2).Info("Foreign MIG instances are offered as they are, or left alone")
	return findings{second, free, held}, sure, nil
}

// madeFor matches the instances made for devices that claims hold.
func madeFor(held []journal.Device) func(gpu.GPU, gpu.Instance) bool {
	return func(g gpu.GPU, instance gpu.Instance) bool {
		return slices.ContainsFunc(held, func(d journal.Device) bool { return prepare.Made(d, g.UUID, instance) })
	}
}

func hasInstances(g gpu.GPU) bool { return len(g.Instances) > 0 }

// without returns the node without some instances.
func without(node gpu.Node, some func(gpu.GPU, gpu.Instance) bool) gpu.Node {
	node.GPUs = slices.Clone(node.GPUs)
	for i, g := range node.GPUs {
		node.GPUs[i] = g.Without(func(instance gpu.Instance) bool { return some(g, instance) })
	}
	return node
}

// seen reports whether an instance exists in the same place, and whether it is the same one, with the
// same devices.
func seen(gpus []gpu.GPU, uuid string, instance gpu.Instance) (there, same bool) {
	for _, g := range gpus {
		for _, other := range g.Instances {
			if g.UUID == uuid && other.ID == instance.ID && other.ProfileID == instance.ProfileID && other.Start == instance.Start {
				return true, slices.Equal(other.Devices, instance.Devices)
			}
		}
	}
	return false, false
}
