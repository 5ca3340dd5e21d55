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

// sight is what one look at the GPUs shows.
type sight struct {
	// node has every instance.
	node gpu.Node
	// unreadable says which GPUs could not be read, nil when all could.
	unreadable error
}

// look is one look at the GPUs, after one that showed the node so.
type look func(before gpu.Node) (sight, error)

// lookAtAll reads everything. GPUs that cannot be read are left out. It fails where there is
// none.
func (o *Offer) lookAtAll(gpu.Node) (sight, error) {
	node, unreadable, err := o.hardware.GPUs.Discover()
	if err == nil && len(node.GPUs)+len(unreadable) == 0 {
		err = fmt.Errorf("the NVIDIA driver %s is loaded but has no GPU: see the kernel's log for messages of NVRM", node.DriverVersion)
	}
	return sight{node, errors.Join(unreadable...)}, err
}

func inOneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// lookAgain sees what changes while the driver is loaded. GPUs that cannot be read stay as they
// were.
func (o *Offer) lookAgain(before gpu.Node) (sight, error) {
	node := before
	var err error
	node.GPUs, err = o.hardware.GPUs.Refresh(before.GPUs)
	return sight{node, err}, nil
}

// findings are what was found out about a node.
type findings struct {
	sight
	// free is the node without the instances that were made here: they are no obstacle to
	// what is offered, because claims hold them.
	free gpu.Node
	// held are the devices that claims have, or may have.
	held []journal.Device
}

// lookAttempts bounds how often looks may contradict each other.
const lookAttempts = 3

// discover looks at the GPUs and tells the instances that were made here from others.
// Claims may be prepared and unprepared meanwhile, also by another process. An instance
// has its record before it is made and until it is gone, so one that is seen both before
// and after the records are read, and that none of them names, is somebody else's. The records
// are read after the second look, too: an instance in the place of another can have its UUID.
// Looks that contradict each other are taken again.
func (o *Offer) discover(ctx context.Context, look look) (found findings, err error) {
	found.node = o.seen
	var sure bool
	for range lookAttempts {
		if found, sure, err = o.lookTwice(ctx, look, found.node); sure || err != nil {
			break
		}
	}
	o.foreign = nil // what an earlier look knew may have made place for a claim's by now
	if sure {
		o.foreign = found.free.GPUs
	}
	if err == nil {
		o.noteGone(ctx, found)
	}
	return found, err
}

// noteGone is what keeps an administrator's partition from being taken for a claim's that was in its place.
func (o *Offer) noteGone(ctx context.Context, found findings) {
	if !slices.ContainsFunc(found.held, func(d journal.Device) bool { return prepare.Missing(d, found.node.GPUs) }) {
		return
	}
	if err := o.Claims.Seen(ctx, found.node.GPUs); err != nil {
		klog.FromContext(ctx).Error(err, "A partition of a claim was destroyed, which could not be written down; the next look tries again")
	}
}

// lookTwice is not sure when an instance had other devices the second time, as when a
// list was read while another claim's device came or went.
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
	klog.FromContext(ctx).V(2).Info("MIG instances that somebody else has made are offered as they are, or left alone")
	return findings{second, free, held}, sure, nil
}

// madeFor matches the instances that were made for some of the devices that claims have.
func madeFor(held []journal.Device) func(gpu.GPU, gpu.Instance) bool {
	return func(g gpu.GPU, instance gpu.Instance) bool {
		return slices.ContainsFunc(held, func(d journal.Device) bool { return prepare.Made(d, g.UUID, instance) })
	}
}

func hasInstances(g gpu.GPU) bool { return len(g.Instances) > 0 }

// without is the node without some instances.
func without(node gpu.Node, some func(gpu.GPU, gpu.Instance) bool) gpu.Node {
	node.GPUs = slices.Clone(node.GPUs)
	for i, g := range node.GPUs {
		node.GPUs[i] = g.Without(func(instance gpu.Instance) bool { return some(g, instance) })
	}
	return node
}

// seen tells whether an instance in the same place is among those of the GPUs, and
// whether it is the very same one, with the same devices.
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
