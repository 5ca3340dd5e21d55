package prepare

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
)

// transact carries out the plan, with the locks of its claim and GPUs held, and publishes the
// result. A plan with effects on a GPU is recorded as an intent before the first of them. If
// it fails, the effects are undone.
func (p *Preparer) transact(ctx context.Context, timer *phaseTimer, record *journal.Record, node *Node, others neighbours) error {
	effects, err := inspect(ctx, record, node, others)
	if err != nil {
		return err
	}
	steps, err := workOf(record, others)
	if err != nil {
		return err
	}
	if !effects {
		if err := doAll(ctx, steps.daemons, node.Tools); err != nil {
			return err
		}
		return p.publish(ctx, timer, record, node)
	}
	record.State = journal.Intent
	if err := p.store.Put(ctx, *record); err != nil {
		return err
	}
	timer.phase(ctx, "intent")
	if err = makeAll(ctx, timer, steps, node.Tools); err == nil {
		err = p.publish(ctx, timer, record, node)
	}
	if err != nil {
		return p.rollBack(ctx, record, steps, node, err)
	}
	return nil
}

func makeAll(ctx context.Context, timer *phaseTimer, steps work, tools Tools) error {
	err := doAll(ctx, steps.gpus, tools)
	timer.phase(ctx, "mig")
	if err != nil || len(steps.daemons) == 0 {
		return err
	}
	err = doAll(ctx, steps.daemons, tools)
	timer.phase(ctx, "mps")
	return err
}

// inspect compares the plan with the GPUs before anything is done to them, and reports
// whether they have to be changed. It completes the record from other shares of its devices.
func inspect(ctx context.Context, record *journal.Record, node *Node, others neighbours) (effects bool, err error) {
	for i := range record.Devices {
		device := &record.Devices[i]
		var change bool
		err := persist(ctx, func() (err error) {
			siblings, err := siblingsOf(record, i, others)
			if err != nil {
				return err
			}
			change, err = inspectDevice(device, node.Pool.Shapes[device.Device].Physical(), siblings, node.Tools)
			return err
		})
		if err != nil {
			return false, advised(*device, err)
		}
		effects = effects || change
	}
	return effects, nil
}

func inspectDevice(device *journal.Device, g gpu.GPU, siblings []journal.Device, tools Tools) (change bool, err error) {
	shape, err := preparationOf(device.Form.Base)
	if err != nil {
		return false, err
	}
	if change, err = shape.inspect(device, g, siblings, tools); err != nil {
		return false, err
	}
	for _, s := range device.Steps {
		if sharing := stepTypes[s.Name]; sharing.inspect != nil {
			more, err := sharing.inspect(device, siblings, tools)
			if err != nil {
				return false, err
			}
			change = change || more
		}
	}
	return change, nil
}

// rollBack undoes the steps of a plan that failed. What it cannot undo stays recorded as an
// intent, so that the next attempt or Reconcile does.
func (p *Preparer) rollBack(ctx context.Context, record *journal.Record, steps work, node *Node, failure error) error {
	if err := p.CDI.Remove(types.UID(record.ClaimUID)); err != nil {
		return inOneLine(failure, err)
	}
	// Record what the attempt has learned: without it, the next one would take an
	// administrator's instance for the claim's.
	remembered := p.remember(ctx, record)
	if err := persist(ctx, func() error { return steps.undo(ctx, node.Tools) }); err != nil {
		err = fmt.Errorf("what was done already is undone later: %w", err)
		return inOneLine(failure, err, cmp.Or(p.remember(ctx, record), remembered))
	}
	return inOneLine(failure, p.store.Delete(record.ClaimUID))
}

// remember records as an intent what is left of a record. It has a budget of its own: that of
// the call may be used up.
func (p *Preparer) remember(ctx context.Context, record *journal.Record) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	record.State = journal.Intent
	return p.store.Put(ctx, *record)
}

// inOneLine joins errors as a pod's event shows them.
func inOneLine(errs ...error) error {
	var joined error
	for _, err := range errs {
		switch {
		case joined == nil:
			joined = err
		case err != nil:
			joined = fmt.Errorf("%w; %w", joined, err)
		}
	}
	return joined
}

// intact reports whether all partitions of the recorded claim still exist.
func (p *Preparer) intact(ctx context.Context, record journal.Record, node *Node) (intact bool, err error) {
	for _, device := range record.Devices {
		if device.AdminAccess {
			continue
		}
		shape, err := preparationOf(device.Form.Base)
		if err == nil {
			err = persist(ctx, func() (err error) {
				intact, err = shape.intact(device, node.Tools)
				return err
			})
		}
		if err != nil {
			return false, advised(device, err)
		}
		if !intact {
			return false, nil
		}
	}
	return true, nil
}

// serve makes sure that the daemons of a prepared claim run.
func (p *Preparer) serve(ctx context.Context, record *journal.Record, node *Node) error {
	steps, err := workOf(record, p.neighbours(ctx, record.ClaimUID))
	if err != nil {
		return err
	}
	return doAll(ctx, steps.daemons, node.Tools)
}

// keepModes sets the time-slices and compute modes of a prepared claim again. They do not
// outlive a reset, or a kernel driver that let go of the GPU while no process held it, and
// time-slices cannot be read.
func (p *Preparer) keepModes(ctx context.Context, record journal.Record, node *Node) error {
	record = record.Clone()
	var uuids []string
	for i, device := range record.Devices {
		fading := slices.DeleteFunc(record.Devices[i].Steps, func(s journal.Step) bool { return !stepTypes[s.Name].fades })
		if record.Devices[i].Steps = fading; len(fading) > 0 {
			uuids = append(uuids, device.UUID)
		}
	}
	if len(uuids) == 0 {
		return nil
	}
	steps, err := workOf(&record, p.neighbours(ctx, record.ClaimUID))
	if err != nil {
		return err
	}
	unlock, err := p.lockGPUs(ctx, uuids)
	if err != nil {
		return err
	}
	defer unlock()
	return doAll(ctx, steps.gpus, node.Tools)
}
