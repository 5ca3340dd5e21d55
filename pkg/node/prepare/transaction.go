package prepare

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/pkg/node/journal"
)

// transact does what the record plans, with the locks of its claim and GPUs held, and
// publishes the result. What has effects on a GPU is recorded as an intent before the
// first of them, and when it fails they are undone.
func (p *Preparer) transact(ctx context.Context, timer *phaseTimer, record *journal.Record, node *Node, others neighbours) error {
	effects, err := p.inspect(ctx, record, node, others)
	if err != nil {
		return err
	}
	if effects {
		if err := p.make(ctx, timer, record, node); err != nil {
			return p.rollBack(ctx, record, node, fmt.Errorf("claim %s, %w", claimIn(*record), err))
		}
	} else if err := p.serve(ctx, record, node); err != nil {
		return err
	}
	if err := p.publish(ctx, timer, record, node); err != nil {
		if effects {
			return p.rollBack(ctx, record, node, err)
		}
		return err
	}
	return nil
}

// make records the intent and does the steps.
func (p *Preparer) make(ctx context.Context, timer *phaseTimer, record *journal.Record, node *Node) error {
	record.State = journal.Intent
	if err := p.Journal.Put(ctx, *record); err != nil {
		return err
	}
	timer.phase(ctx, "intent")
	w, err := workOf(record, p.neighbours(ctx, record.ClaimUID), every)
	if err != nil {
		return err
	}
	err = doAll(ctx, w.gpus, node.Tools)
	timer.phase(ctx, "mig")
	if err != nil || len(w.daemons) == 0 {
		return err
	}
	err = doAll(ctx, w.daemons, node.Tools)
	timer.phase(ctx, "mps")
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

// announceRelease makes an intent of a record whose effects are about to be undone. They
// can be undone from any record: on a disk that is full, no pod has to stay for its sake.
func (p *Preparer) announceRelease(ctx context.Context, record journal.Record) {
	if !p.hasEffects(record) || record.State == journal.Intent {
		return
	}
	record.State = journal.Intent
	if err := p.Journal.Put(ctx, record); err != nil {
		klog.FromContext(ctx).Error(err, "A claim is released although its record cannot say so: make space on the disk of the plugin's directory", "claim", klog.KRef(record.Namespace, record.Name))
	}
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

// keepModes sets again what a prepared claim's GPUs are to have: time-slices, which
// cannot be read, and compute modes do not outlive a reset, or a kernel driver that let
// go of the GPU while no process held it.
func (p *Preparer) keepModes(ctx context.Context, record journal.Record, node *Node) error {
	fading, err := workOf(&record, p.neighbours(ctx, record.ClaimUID), func(s journal.Step) bool { return steps[s].fades })
	if err != nil {
		return fmt.Errorf("claim %s, %w", claimIn(record), err)
	}
	if len(fading.gpus) == 0 {
		return nil
	}
	uuids := make([]string, len(fading.gpus))
	for i, j := range fading.gpus {
		uuids[i] = j.gpu
	}
	unlock, err := p.lockGPUs(ctx, uuids)
	if err != nil {
		return fmt.Errorf("claim %s: %w", claimIn(record), err)
	}
	defer unlock()
	if err := doAll(ctx, fading.gpus, node.Tools); err != nil {
		return fmt.Errorf("claim %s, %w", claimIn(record), err)
	}
	return nil
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
