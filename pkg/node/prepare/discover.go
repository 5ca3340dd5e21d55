package prepare

import (
	"context"
	"slices"

	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// Discover looks at the GPUs and leaves out the instances that were made here:
// they are no obstacle to what is offered, because claims hold them. Claims may
// be prepared and unprepared meanwhile, also by another process. An instance
// has its record before it is made and until it is gone, so one that is seen
// both before and after the records are read, and that none of them names, is
// somebody else's. Looks that contradict each other are taken again.
func (p *Preparer) Discover(ctx context.Context, look func() (gpu.Node, error)) (node gpu.Node, err error) {
	for range lookAttempts {
		var sure bool
		if node, sure, err = p.lookTwice(ctx, look); sure || err != nil {
			break
		}
	}
	return node, err
}

// lookAttempts bounds how often looks may contradict each other.
const lookAttempts = 3

// lookTwice is not sure when an instance had other devices the second time, as when a
// list was read while another claim's device came or went.
func (p *Preparer) lookTwice(ctx context.Context, look func() (gpu.Node, error)) (node gpu.Node, sure bool, err error) {
	node, err = look()
	if err != nil || !slices.ContainsFunc(node.GPUs, hasInstances) {
		return node, true, err
	}
	records, err := p.records(ctx)
	if err != nil {
		return gpu.Node{}, false, err
	}
	before := node.GPUs
	for i, g := range before {
		before[i] = g.Without(func(instance gpu.Instance) bool { return p.anyNames(records, g.UUID, instance) })
	}
	if !slices.ContainsFunc(before, hasInstances) {
		return node, true, nil
	}
	node, err = look()
	if err != nil {
		return node, false, err
	}
	sure = true
	for i, g := range node.GPUs {
		node.GPUs[i] = g.Without(func(instance gpu.Instance) bool {
			there, same := seen(before, g.UUID, instance)
			sure = sure && there == same
			return !same
		})
	}
	klog.FromContext(ctx).V(2).Info("MIG instances that somebody else has made are offered as they are, or left alone")
	return node, sure, nil
}

func hasInstances(g gpu.GPU) bool { return len(g.Instances) > 0 }

// anyNames tells whether an instance on a GPU is one of those that were made here.
func (p *Preparer) anyNames(records []journal.Record, uuid string, instance gpu.Instance) bool {
	return slices.ContainsFunc(records, func(record journal.Record) bool {
		return record.BootID == p.BootID && slices.ContainsFunc(record.Devices, func(d journal.Device) bool {
			return ours(d) && d.UUID == uuid && names(d.Partition, instance)
		})
	})
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
