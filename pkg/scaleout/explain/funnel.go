package explain

import (
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// funnel narrows the devices of a node down to those that a request can have, and says
// where too few were left; nil where there are enough.
func (d *diagnosis) funnel(s *stock, r request) *Finding {
	class := d.classes[r.class]
	if class == nil {
		return &Finding{
			Blocker: BlockerClass, Distance: distanceClass,
			Text: fmt.Sprintf("asks for class %s, which does not exist", r.class), Hint: "see kubectl get deviceclasses",
		}
	}
	if r.all {
		if f := incomplete(s); f != nil {
			return f
		}
	}
	left, short, f := d.ofClass(s, r, class)
	if f != nil {
		return f
	}
	for i := range r.selectors {
		if r.selectors[i].CEL == nil {
			continue
		}
		passed, f := d.selector(r, i, left)
		if f != nil && len(passed) == 0 {
			return f
		}
		left = passed
		if short == nil {
			short = f
		}
	}
	if short != nil {
		// Too few, but each of them would do: that is nearer than none that would.
		return short
	}
	for _, narrow := range []func(*stock, request, []*device) ([]*device, *Finding){d.roomy, d.untainted, d.free} {
		if left, f = narrow(s, r, left); f != nil {
			return f
		}
	}
	return nil
}

// incomplete stops requests for all devices, of which nobody knows how many there are.
func incomplete(s *stock) *Finding {
	for _, p := range s.pools {
		if !p.complete() {
			return &Finding{
				Blocker: BlockerPoolIncomplete, Distance: distanceIncomplete,
				Text: fmt.Sprintf("asks for all devices, and of pool %s of driver %s %d of %d slices are published", p.name, p.driver, len(p.slices), p.want),
			}
		}
	}
	return nil
}

// ofClass keeps the devices of the class. short says that they are too few, but some.
func (d *diagnosis) ofClass(s *stock, r request, class *resourceapi.DeviceClass) (left []*device, short, f *Finding) {
	left = s.devices
	for _, selector := range class.Spec.Selectors {
		if selector.CEL == nil {
			continue
		}
		passed, failed, f := d.sift(selector.CEL.Expression, left, fmt.Sprintf("asks for class %s, whose selector", class.Name))
		if f != nil {
			return nil, nil, f
		}
		if len(passed) == 0 {
			return nil, nil, &Finding{
				Blocker: BlockerClass, Distance: distanceClass,
				Text: fmt.Sprintf("%s of class %s wanted, and the node has none: its devices are %s", r.wanted(), class.Name, tally(kinds(failed))),
				Hint: classHint(d.offer, class.Name),
			}
		}
		left = passed
	}
	if len(left) < r.devices {
		short = few(r, len(left), fmt.Sprintf("%s of class %s", count(len(left), "device"), class.Name))
	}
	return left, short, nil
}

// classHint names what makes a node offer shapes.
func classHint(o Offer, class string) string {
	if o.Imagined {
		return fmt.Sprintf("if such nodes are to offer class %s, change the GPUPolicy that applies to them", class)
	}
	return ""
}

func kinds(devices []*device) []string {
	var words []string
	for _, d := range devices {
		words = append(words, d.kind())
	}
	return words
}

// few says that the node has less than is asked for, whatever is in use.
func few(r request, have int, what string) *Finding {
	f := &Finding{
		Blocker: BlockerCount, Distance: distanceCount + 1 - float64(have)/float64(max(r.devices, have)),
		Text: fmt.Sprintf("%s wanted, and the node has %s", r.wanted(), what),
	}
	if have > 0 {
		f.Hint = fmt.Sprintf("ask for at most %d a pod, or for a larger node", have)
	}
	return f
}

// sift parts devices by an expression. An expression that cannot be evaluated on a device
// stops the scheduler, whatever other devices there are.
func (d *diagnosis) sift(expression string, from []*device, whose string) (passed, failed []*device, f *Finding) {
	for _, dev := range from {
		got := d.evaluate(d.ctx, expression, dev)
		switch {
		case got.err != nil:
			return nil, nil, d.broken(expression, dev, got.err, whose)
		case got.matches:
			passed = append(passed, dev)
		default:
			failed = append(failed, dev)
		}
	}
	return passed, failed, nil
}

// selector keeps the devices that pass one selector of the request, with a finding where they
// are too few.
func (d *diagnosis) selector(r request, index int, from []*device) ([]*device, *Finding) {
	expression := r.selectors[index].CEL.Expression
	passed, failed, f := d.sift(expression, from, "the selector")
	if f != nil || len(passed) >= r.devices || len(failed) == 0 {
		return passed, f
	}
	blocked := d.nearest(expression, failed)
	before := fmt.Sprintf("%s of class %s", count(len(from), "device"), r.class)
	if index > 0 {
		before = fmt.Sprintf("%s of class %s that passed the %s before", count(len(from), "device"), r.class, count(index, "selector"))
	}
	passing := "none passes"
	if len(passed) > 0 {
		passing = fmt.Sprintf("only %d pass", len(passed))
	}
	f = &Finding{
		Blocker:  BlockerSelector,
		Distance: distanceSelector + blocked.distance,
		Text:     fmt.Sprintf("%s wanted; of %s %s `%s`: %s", r.wanted(), before, passing, blocked.condition.text, blocked.values(len(failed))),
		Hint:     d.selectorHint(blocked),
	}
	if len(passed) > 0 {
		f.Blocker, f.Distance = BlockerCount, distanceCount+1-float64(len(passed))/float64(r.devices)
	}
	return passed, f
}

// roomy keeps the devices that have what is asked of their capacities when nobody uses them.
func (d *diagnosis) roomy(_ *stock, r request, from []*device) ([]*device, *Finding) {
	var kept []*device
	first := ""
	for _, dev := range from {
		if why := r.never(dev); why == "" {
			kept = append(kept, dev)
		} else if first == "" {
			first = why
		}
	}
	if len(kept) >= r.devices {
		return kept, nil
	}
	return nil, &Finding{
		Blocker: BlockerCapacity, Distance: distanceCapacity,
		Text: fmt.Sprintf("%s wanted, and %d of %s can be large enough: %s", r.wanted(), len(kept), count(len(from), "matching device"), first),
		Hint: "ask for less, or for a larger shape",
	}
}

// untainted keeps the devices whose taints the request tolerates.
func (d *diagnosis) untainted(_ *stock, r request, from []*device) ([]*device, *Finding) {
	var kept []*device
	var taints []string
	for _, dev := range from {
		if taint := r.repelled(dev); taint != nil {
			taints = append(taints, "with "+taintText(*taint))
		} else {
			kept = append(kept, dev)
		}
	}
	if len(taints) == 0 || len(kept) >= r.devices && !r.all {
		return kept, nil
	}
	return nil, &Finding{
		Blocker: BlockerTaint, Distance: distanceTaint + 1 - float64(len(kept))/float64(max(r.devices, len(from))),
		Text: fmt.Sprintf("%s wanted; of %s %d are tainted (%s), %d left", r.wanted(), count(len(from), "matching device"), len(taints), tally(taints), len(kept)),
		Hint: "mend the devices, or tolerate the taint in the request",
	}
}

func taintText(t resourceapi.DeviceTaint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}

// free takes devices as they come, and says what stands in the way of the others.
func (d *diagnosis) free(s *stock, r request, from []*device) ([]*device, *Finding) {
	trial := s.clone()
	got := r.draw(trial, from)
	if r.enough(len(got), len(from)) {
		return got, nil
	}
	if f := d.usedNow(s, r, from, len(got)); f != nil {
		return nil, f
	}
	// Nothing is used by others: it is the request's own devices that leave no room.
	f := few(r, len(got), fmt.Sprintf("room for %d at once of %s%s", len(got), count(len(from), "matching device"), apart(trial, r, from)))
	if r.all {
		f.Hint = "ask for a number of devices: those that match cannot all be had at once"
	}
	return nil, f
}

// apart says why devices cannot be had beside those that the request has.
func apart(s *stock, r request, from []*device) string {
	for _, dev := range from {
		if s.taken[dev.id] {
			continue
		}
		if short := s.short(dev); short != nil {
			return fmt.Sprintf(": for %s, %s of %s has %s left and %s is needed", dev.Name, short.counter, short.set, amount(short.left), amount(short.need))
		}
		if tight := r.crowded(s, dev); tight != nil {
			return fmt.Sprintf(": %s has %s of %s left and %s is needed", dev.Name, amount(tight.left), tight.capacity, amount(tight.takes))
		}
	}
	return ""
}

// usedNow counts what others have; nil where they have nothing of what matches.
func (d *diagnosis) usedNow(s *stock, r request, from []*device, got int) *Finding {
	var parts []string
	var blocked [crowded + 1]int
	var shares, counters string
	for _, dev := range from {
		o := r.can(s, dev)
		blocked[o]++
		if o == shortOfCounters && counters == "" {
			short := s.short(dev)
			counters = fmt.Sprintf("%s of %s has %s left of the %s that %s takes", short.counter, short.set, amount(short.left), amount(short.need), dev.Name)
		}
		if o == crowded && shares == "" {
			tight := r.crowded(s, dev)
			shares = fmt.Sprintf("%s has %s of %s left of %s, %s is needed", dev.Name, amount(tight.left), tight.capacity, amount(tight.of), amount(tight.takes))
		}
	}
	if blocked[inUse] > 0 {
		parts = append(parts, fmt.Sprintf("%d allocated to claims", blocked[inUse]))
	}
	if blocked[shortOfCounters] > 0 {
		parts = append(parts, fmt.Sprintf("%d overlapping with what is allocated of the same GPU (%s)", blocked[shortOfCounters], counters))
	}
	if blocked[crowded] > 0 {
		parts = append(parts, fmt.Sprintf("%d too full (%s)", blocked[crowded], shares))
	}
	if len(parts) == 0 {
		return nil
	}
	f := &Finding{
		Blocker: BlockerInUse, Distance: distanceInUse + 1 - float64(got)/float64(max(r.devices, len(from))),
		Text: fmt.Sprintf("%s wanted, %d free; of %s %s", r.wanted(), got, count(len(from), "matching device"), strings.Join(parts, ", ")),
	}
	switch {
	case blocked[inUse] > 0:
	case blocked[shortOfCounters] > 0:
		f.Blocker = BlockerCounters
	default:
		f.Blocker = BlockerCapacity
	}
	return f
}
