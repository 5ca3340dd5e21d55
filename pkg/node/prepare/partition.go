package prepare

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

var errNoDriver = errors.New("the NVIDIA driver on this node does not answer yet, so no GPU can be prepared: see the log of this plugin for the reason; kubelet tries again")

// ours tells whether a recorded device is a partition that is made and unmade here.
func ours(device journal.Device) bool {
	return device.Shape == gpu.BasePartition && !device.Partition.Foreign
}

// hasEffects tells whether the record's claim may have left something on a GPU,
// be it only the mode.
func (p *Preparer) hasEffects(record journal.Record) bool {
	return record.BootID == p.BootID && slices.ContainsFunc(record.Devices, affects)
}

// affects tells whether something may be left of what was done for a device.
func affects(device journal.Device) bool { return slices.ContainsFunc(device.Steps, leaves) }

// affected are the GPUs on which something may be left, sorted.
func affected(record journal.Record) []string {
	var uuids []string
	for _, device := range record.Devices {
		if affects(device) {
			uuids = append(uuids, device.UUID)
		}
	}
	slices.Sort(uuids)
	return slices.Compact(uuids)
}

// carryOut does what the plan takes, with the locks of its claim and GPUs held.
// A plan with effects on a GPU is recorded as an intent before the first of
// them, and when it fails they are undone.
func (p *Preparer) carryOut(ctx context.Context, timer *phaseTimer, record *journal.Record, plan Plan, node *Node, others neighbours) error {
	effects, err := p.inspect(ctx, record, plan, node, others)
	if err != nil {
		return err
	}
	if effects {
		if err := p.make(ctx, timer, record, node); err != nil {
			return p.rollBack(ctx, record, node, fmt.Errorf("claim %s, %w", plan.Claim, err))
		}
	} else if err := p.serve(ctx, record, node); err != nil {
		return err
	}
	err = p.writeSpec(*record, node)
	timer.phase("cdi")
	if err == nil {
		record.State = journal.Prepared
		if err = p.Journal.Put(ctx, *record); err != nil {
			err = errors.Join(fmt.Errorf("claim %s: %w", plan.Claim, err), p.CDI.Remove(plan.Claim.UID))
		}
		timer.phase("record")
	}
	if err != nil && effects {
		return p.rollBack(ctx, record, node, err)
	}
	return err
}

// make records the intent and does the steps.
func (p *Preparer) make(ctx context.Context, timer *phaseTimer, record *journal.Record, node *Node) error {
	record.State = journal.Intent
	if err := p.Journal.Put(ctx, *record); err != nil {
		return err
	}
	timer.phase("intent")
	w, err := workOf(record, p.neighbours(ctx, record.ClaimUID), every)
	if err != nil {
		return err
	}
	err = doAll(ctx, w.gpus, node.Tools)
	timer.phase("mig")
	if err != nil || len(w.daemons) == 0 {
		return err
	}
	err = doAll(ctx, w.daemons, node.Tools)
	timer.phase("mps")
	return err
}

// serve makes sure that the daemons run whose clients the claim's processes are.
func (p *Preparer) serve(ctx context.Context, record *journal.Record, node *Node) error {
	w, err := workOf(record, p.neighbours(ctx, record.ClaimUID), every)
	if err == nil {
		err = doAll(ctx, w.daemons, node.Tools)
	}
	if err != nil {
		return fmt.Errorf("claim %s, %w", claimIn(*record), err)
	}
	return nil
}

// rollBack undoes what was done of a plan that failed. What it cannot undo stays
// recorded as an intent, so that the next attempt or Reconcile does.
func (p *Preparer) rollBack(ctx context.Context, record *journal.Record, node *Node, failure error) error {
	uid := types.UID(record.ClaimUID)
	if err := p.CDI.Remove(uid); err != nil {
		return inOneLine([]error{failure, err})
	}
	// Without what the attempt has learned, whoever undoes the rest would take
	// what somebody else has made for a part of it.
	remembered := p.remember(ctx, record)
	w, err := workOf(record, p.neighbours(ctx, record.ClaimUID), every)
	if err == nil {
		err = w.undo(ctx, node.Tools)
	}
	if err != nil {
		err = fmt.Errorf("what was done already is undone later: %w", err)
		return inOneLine([]error{failure, err, cmp.Or(p.remember(ctx, record), remembered)})
	}
	if err := p.Journal.Delete(record.ClaimUID); err != nil {
		return inOneLine([]error{failure, err})
	}
	return failure
}

// remember writes down as an intent what is left of a record. Its budget is its
// own: that of the call may be used up.
func (p *Preparer) remember(ctx context.Context, record *journal.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	record.State = journal.Intent
	return p.Journal.Put(ctx, *record)
}

// announceRelease makes an intent of a record whose effects are about to be undone.
func (p *Preparer) announceRelease(ctx context.Context, record journal.Record) error {
	if !p.hasEffects(record) || record.State == journal.Intent {
		return nil
	}
	record.State = journal.Intent
	return p.Journal.Put(ctx, record)
}

// unmake undoes the effects that a record speaks of, if any, and deletes it then.
// The caller holds the claim's lock and no GPU's.
func (p *Preparer) unmake(ctx context.Context, record journal.Record) error {
	if !p.hasEffects(record) {
		return nil
	}
	node := p.node.Load()
	if node == nil {
		return errNoDriver
	}
	record = record.Clone()
	uuids := affected(record)
	// What a process uses may stay so for as long as ctx lasts, so the other claims
	// of the GPU have their turn between two attempts.
	var last error
	return persist(ctx, func() error {
		unlock, err := p.lockGPUs(ctx, uuids)
		if err != nil {
			return cmp.Or(last, err)
		}
		defer unlock()
		known := record.Clone()
		var w work
		if w, last = workOf(&record, p.neighbours(ctx, record.ClaimUID), every); last != nil {
			return last
		}
		last = w.undoOnce(ctx, node.Tools)
		switch {
		case last == nil:
			// Under the lock, so that of the last two claims of a GPU one sees
			// that it is the last, and disables MIG.
			last = p.Journal.Delete(record.ClaimUID)
		case !reflect.DeepEqual(known, record):
			last = inOneLine([]error{last, p.remember(ctx, &record)})
		}
		return last
	})
}

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
