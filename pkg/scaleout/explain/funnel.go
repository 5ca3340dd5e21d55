package explain

import (
	"cmp"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// funnel narrows the devices of a node down to those that a request can have, and says
// where too few were left; nil where there are enough.
func (d *diagnosis) funnel(s *devices.Stock, r request) *finding {
	class := d.classes[r.DeviceClassName]
	if class == nil {
		return &finding{
			Blocker: blockerClass, Distance: distanceClass,
			Text: fmt.Sprintf("asks for class %s, which does not exist", r.DeviceClassName), Hint: "see kubectl get deviceclasses",
		}
	}
	if r.all() {
		// Of all devices nobody knows how many there are.
		if missing := missingSlices(s); missing != "" {
			return &finding{Blocker: blockerPoolIncomplete, Distance: distanceIncomplete, Text: "asks for all devices, and " + missing}
		}
	}
	left, short, f := d.ofClass(s, r, class)
	if f != nil {
		return f
	}
	for i := range r.Selectors {
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
	if left, f = d.roomy(r, left); f != nil {
		return f
	}
	sound, tainted := r.untainted(left)
	if len(tainted) > 0 && (len(sound) < r.least() || r.all()) {
		return fewUntainted(r, len(sound), tainted)
	}
	if f = d.free(s, r, sound); f != nil && len(tainted) > 0 {
		f.Text += fmt.Sprintf("; %d more %s", len(tainted), repelled(tainted))
		f.Hint = joined(append([]string{f.Hint}, remedies(tainted)...))
	}
	return f
}

// ofClass keeps the devices of the class. short says that they are too few, but some.
func (d *diagnosis) ofClass(s *devices.Stock, r request, class *resourceapi.DeviceClass) (left []*devices.Device, short, f *finding) {
	left = s.Devices
	for _, selector := range class.Spec.Selectors {
		passed, failed, f := d.sift(selector.CEL.Expression, left, fmt.Sprintf("asks for class %s, whose selector", class.Name))
		if f != nil {
			return nil, nil, f
		}
		if len(passed) == 0 {
			return nil, nil, &finding{
				Blocker: blockerClass, Distance: distanceClass,
				Text: fmt.Sprintf("%s of class %s wanted, and the node has none: its devices are %s", r.wanted(), class.Name, tally(typesOf(failed))),
				Hint: classHint(d.offer, class.Name),
			}
		}
		left = passed
	}
	if len(left) < r.least() {
		short = few(r, len(left), fmt.Sprintf("%s of class %s", count(len(left), "device"), class.Name))
	}
	return left, short, nil
}

// classHint names what makes a node offer shapes.
func classHint(o offer, class string) string {
	if o.imagined {
		return fmt.Sprintf("if such nodes are to offer class %s, change the GPUPolicy that applies to them", class)
	}
	return ""
}

// typesOf are those that drivers publish of their devices.
func typesOf(of []*devices.Device) []string {
	var words []string
	for _, d := range of {
		words = append(words, cmp.Or(ownText(d, gpu.AttributeType), "of "+d.ID.Pool.Driver))
	}
	return words
}

// few says that the node has less than is asked for, whatever is in use.
func few(r request, have int, what string) *finding {
	f := &finding{
		Blocker: blockerCount, Distance: distanceCount + 1 - float64(have)/float64(max(r.least(), have)),
		Text: fmt.Sprintf("%s wanted, and the node has %s", r.wanted(), what),
	}
	if have > 0 {
		f.Hint = fmt.Sprintf("ask for at most %d a pod, or for a larger node", have)
	}
	return f
}

// sift parts devices by an expression. An expression that cannot be evaluated on a device
// stops the scheduler, whatever other devices there are.
func (d *diagnosis) sift(expression string, from []*devices.Device, whose string) (passed, failed []*devices.Device, f *finding) {
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
func (d *diagnosis) selector(r request, index int, from []*devices.Device) ([]*devices.Device, *finding) {
	expression := r.Selectors[index].CEL.Expression
	passed, failed, f := d.sift(expression, from, "the selector")
	if f != nil || len(passed) >= r.least() || len(failed) == 0 {
		return passed, f
	}
	blocked := d.nearest(expression, failed)
	before := fmt.Sprintf("%s of class %s", count(len(from), "device"), r.DeviceClassName)
	if index > 0 {
		before = fmt.Sprintf("%s of class %s that passed the %s before", count(len(from), "device"), r.DeviceClassName, count(index, "selector"))
	}
	passing := "none passes"
	if len(passed) > 0 {
		passing = fmt.Sprintf("only %d pass", len(passed))
	}
	f = &finding{
		Blocker:  blockerSelector,
		Distance: distanceSelector + blocked.distance,
		Text:     fmt.Sprintf("%s wanted; of %s %s `%s`: %s", r.wanted(), before, passing, blocked.condition.Text, blocked.values(len(failed))),
		Hint:     d.selectorHint(blocked),
	}
	if len(passed) > 0 {
		f.Blocker, f.Distance = blockerCount, distanceCount+1-float64(len(passed))/float64(r.least())
	}
	return passed, f
}

// roomy keeps the devices that have what is asked of their capacities when nobody uses them.
func (d *diagnosis) roomy(r request, from []*devices.Device) ([]*devices.Device, *finding) {
	var kept []*devices.Device
	first := ""
	for _, dev := range from {
		if why := r.never(dev); why == "" {
			kept = append(kept, dev)
		} else if first == "" {
			first = why
		}
	}
	if len(kept) >= r.least() {
		return kept, nil
	}
	return nil, &finding{
		Blocker: blockerCapacity, Distance: distanceCapacity,
		Text: fmt.Sprintf("%s wanted, and %d of %s can be large enough: %s", r.wanted(), len(kept), count(len(from), "matching device"), first),
		Hint: "ask for less, or for a larger shape",
	}
}

// free takes devices as they come, and says what stands in the way of the others.
func (d *diagnosis) free(s *devices.Stock, r request, from []*devices.Device) *finding {
	trial := s.Clone()
	got := r.draw(trial, from)
	if r.enough(got, len(from)) {
		return nil
	}
	if f := d.usedNow(s, r, from, got); f != nil {
		return f
	}
	// Nothing is used by others: it is the request's own devices that leave no room.
	f := few(r, got, fmt.Sprintf("room for %d at once of %s%s", got, count(len(from), "matching device"), apart(trial, r, from)))
	if r.all() {
		f.Hint = "ask for a number of devices: those that match cannot all be had at once"
	}
	return f
}

// apart says why devices cannot be had beside those that the request has.
func apart(s *devices.Stock, r request, from []*devices.Device) string {
	for _, dev := range from {
		if s.Taken(dev) {
			continue
		}
		if short := s.Short(dev); short != nil {
			return fmt.Sprintf(": for %s, %s of %s has %s left and %s is needed", dev.Name, short.Counter, short.Set, amount(short.Left), amount(short.Need))
		}
		if tight := s.Crowded(dev, r.Capacity); tight != nil {
			return fmt.Sprintf(": %s has %s of %s left and %s is needed", dev.Name, amount(tight.Left), tight.Capacity, amount(tight.Takes))
		}
	}
	return ""
}

// usedNow counts what others have; nil where they have nothing of what matches.
func (d *diagnosis) usedNow(s *devices.Stock, r request, from []*devices.Device, got int) *finding {
	var parts []string
	var blocked [crowded + 1]int
	var shares, counters string
	for _, dev := range from {
		o := r.can(s, dev)
		blocked[o]++
		if o == shortOfCounters && counters == "" {
			short := s.Short(dev)
			counters = fmt.Sprintf("%s of %s has %s left of the %s that %s takes", short.Counter, short.Set, amount(short.Left), amount(short.Need), dev.Name)
		}
		if o == crowded && shares == "" {
			tight := s.Crowded(dev, r.Capacity)
			shares = fmt.Sprintf("%s has %s of %s left of %s, %s is needed", dev.Name, amount(tight.Left), tight.Capacity, amount(tight.Of), amount(tight.Takes))
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
	f := &finding{
		Blocker: blockerInUse, Distance: distanceInUse + 1 - float64(got)/float64(max(r.least(), len(from))),
		Text: fmt.Sprintf("%s wanted, %d free; of %s %s", r.wanted(), got, count(len(from), "matching device"), strings.Join(parts, ", ")),
	}
	switch {
	case blocked[inUse] > 0:
	case blocked[shortOfCounters] > 0:
		f.Blocker = blockerCounters
	default:
		f.Blocker = blockerCapacity
	}
	return f
}
