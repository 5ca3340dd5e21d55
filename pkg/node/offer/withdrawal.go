package offer

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/node/journal"
	"github.com/mica-gpu/mica/pkg/slice"
)

// withdrawalTime is how long a withdrawn shape stays published: the scheduler may have allocated it
// before it saw the taint, and kubelet calls Prepare later.
const withdrawalTime = time.Minute

// history has the policies of a node's GPUs, by UUID. The zero value is for a process that has
// offered nothing yet.
type history struct {
	current map[string]gpu.Policy
	past    map[string][]replaced // oldest first
	// offered are the forms of the last offer, by device.
	offered map[string]formOf
}

// formOf is the form of a device on the GPU with this UUID.
type formOf struct {
	gpu  string
	form gpu.Form
}

// replaced is a former policy; claims for its shapes may still arrive.
type replaced struct {
	policy gpu.Policy
	until  time.Time
}

// desired are the shapes and taints that a node should publish.
type desired struct {
	shapes []gpu.Shape
	// taints keep further claims from shapes.
	taints slice.Taints
	// passing: some shapes are offered only because claims hold them.
	passing bool
	// until is when it changes by itself; zero for never.
	until time.Time
	// unknown are held devices that cannot be offered, because this version does not know them.
	unknown []error
}

// identities describe an offer for comparison: shape names, sharing, foreign instances, taints, and
// what cannot be offered.
func identities(d desired) []string {
	all := make([]string, 0, len(d.shapes))
	for _, shape := range d.shapes {
		identity := fmt.Sprintf("%s %s %+v %s", shape.Name(), shape.Physical().UUID, shape.Form(), shape.UUID())
		for _, taint := range d.taints[shape.Name()] {
			identity += fmt.Sprintf(" %s=%s:%s", taint.Key, taint.Value, taint.Effect)
		}
		all = append(all, identity)
	}
	for _, err := range d.unknown {
		all = append(all, err.Error())
	}
	return all
}

// next decides what to publish under the given policies: first the shapes that they offer, then the
// withdrawn ones.
func (h history) next(gpus []gpu.GPU, policies map[string]gpu.Policy, held []journal.Device, now time.Time) (history, desired) {
	h = h.replace(gpus, policies, now)
	next := desired{
		shapes: gpu.Shapes(gpus, func(g gpu.GPU) gpu.Policy { return policies[g.UUID] }),
		taints: slice.Taints{},
	}
	next.passing = h.keepSharing(&next, held)
	known := map[string]bool{}
	for _, shape := range next.shapes {
		known[shape.Name()] = true
	}
	var leaving []gpu.Shape
	withdraw := func(shapes []gpu.Shape, only func(name string) bool) (added bool) {
		for _, shape := range shapes {
			if name := shape.Name(); !known[name] && only(name) {
				known[name] = true
				next.taints.Add(name, slice.Withdrawn())
				leaving = append(leaving, shape)
				added = true
			}
		}
		return added
	}
	for _, g := range gpus {
		for _, past := range slices.Backward(h.past[g.UUID]) {
			if withdraw(shapesOf(g, past.policy), func(string) bool { return true }) {
				next.changesAt(past.until)
			}
		}
		for _, device := range held {
			if device.UUID != g.UUID || device.Newer {
				continue
			}
			// What the GPU no longer supports is not published.
			shape, err := gpu.Restore(g, device.Form)
			switch {
			case err == nil:
				withdraw([]gpu.Shape{shape}, func(name string) bool { return name == device.Device })
			case !errors.Is(err, gpu.ErrNotOffered):
				next.unknown = append(next.unknown, fmt.Errorf("device %s of GPU %s, which a claim has: %w", device.Device, g.UUID, err))
			}
		}
	}
	// By name, whatever the reason that a shape stays.
	slices.SortFunc(leaving, func(a, b gpu.Shape) int { return cmp.Compare(a.Name(), b.Name()) })
	next.shapes = append(next.shapes, leaving...)
	for _, g := range gpus {
		if g.Fabric != gpu.FabricReady {
			next.taints.AddGPU(g.UUID, next.shapes, slice.FabricPending(g.Fabric))
		}
	}
	next.passing = keepIntervals(next.shapes, held) || next.passing || len(leaving) > 0
	h.offered = make(map[string]formOf, len(next.shapes))
	for _, shape := range next.shapes {
		h.offered[shape.Name()] = formOf{shape.Physical().UUID, shape.Form()}
	}
	return h, next
}

// changesAt notes a time at which the offer changes by itself, unless it is zero.
func (d *desired) changesAt(at time.Time) {
	if d.until.IsZero() || !at.IsZero() && at.Before(d.until) {
		d.until = at
	}
}

// replace notes former policies. A GPU that is absent for now keeps its history.
func (h history) replace(gpus []gpu.GPU, policies map[string]gpu.Policy, now time.Time) history {
	updated := history{current: maps.Clone(h.current), past: map[string][]replaced{}, offered: h.offered}
	if updated.current == nil {
		updated.current = map[string]gpu.Policy{}
	}
	for uuid, past := range h.past {
		if fresh := slices.DeleteFunc(slices.Clone(past), func(r replaced) bool { return !now.Before(r.until) }); len(fresh) > 0 {
			updated.past[uuid] = fresh
		}
	}
	for _, g := range gpus {
		if before, known := h.current[g.UUID]; known && !reflect.DeepEqual(before, policies[g.UUID]) {
			// Once, however often the policy alternates.
			others := slices.DeleteFunc(updated.past[g.UUID], func(r replaced) bool { return reflect.DeepEqual(r.policy, before) })
			updated.past[g.UUID] = append(others, replaced{policy: before, until: now.Add(withdrawalTime)})
		}
		updated.current[g.UUID] = policies[g.UUID]
	}
	return updated
}

func shapesOf(g gpu.GPU, policy gpu.Policy) []gpu.Shape {
	return gpu.Shapes([]gpu.GPU{g}, func(gpu.GPU) gpu.Policy { return policy })
}

// keepSharing withdraws devices that change between one claim and several, as they are, while a claim has
// them or may still get them, and reports whether there are any. The scheduler counts the claims of a
// device by what its slice says now: it would not see the others, and give the device away again
// (kubernetes/kubernetes#140798).
func (h history) keepSharing(next *desired, held []journal.Device) (kept bool) {
	inUse := map[string]formOf{}
	for _, device := range held {
		if !device.Newer {
			inUse[device.Device] = formOf{device.UUID, device.Form}
		}
	}
	for i, shape := range next.shapes {
		before, until := h.before(shape, inUse[shape.Name()])
		if before.Base == "" || before.Shared() == shape.Form().Shared() {
			continue
		}
		if as, err := gpu.Restore(shape.Physical(), before); err == nil {
			next.shapes[i], kept = as, true
			next.taints.Add(shape.Name(), slice.Withdrawn())
			next.changesAt(until)
		}
	}
	return kept
}

// before is the form of a device that a claim has, or may still get until the given time; zero if there is
// no such form.
func (h history) before(shape gpu.Shape, inUse formOf) (form gpu.Form, until time.Time) {
	uuid, offered := shape.Physical().UUID, h.offered[shape.Name()]
	taken, known := inUse.gpu == uuid, offered.gpu == uuid
	switch past := h.past[uuid]; {
	case taken && known && offered.form.Shared() == inUse.form.Shared():
		return offered.form, time.Time{}
	case taken: // after a restart, or allocated before the last change
		return inUse.form, time.Time{}
	case known && len(past) > 0:
		return offered.form, past[len(past)-1].until
	}
	return gpu.Form{}, time.Time{}
}

// keepIntervals gives held shares the GPU's present time-slice interval, which changes with the next
// first claim, and reports whether it differs from the policy's.
func keepIntervals(shapes []gpu.Shape, held []journal.Device) (kept bool) {
	set := map[string]gpu.Interval{}
	for _, device := range held {
		if interval := device.Form.Interval; interval != "" {
			set[device.Device] = interval
		}
	}
	for i, shape := range shapes {
		form := shape.Form()
		interval, inUse := set[shape.Name()]
		if !inUse || form.Interval == interval {
			continue
		}
		form.Interval = interval
		if as, err := gpu.Restore(shape.Physical(), form); err == nil {
			shapes[i] = as
			kept = true
		}
	}
	return kept
}
