package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// funnel narrows the devices of a node down to those that a request can have, and is the finding for the step that
// leaves too few; nil: the request fits.
func (d *diagnosis) funnel(r request) *finding {
	class := d.classes[r.DeviceClassName]
	if class == nil {
		return &finding{
			Blocker: blockerClass, Distance: distanceClass,
			Text: fmt.Sprintf("asks for class %s, which does not exist", r.DeviceClassName), Hint: "see kubectl get deviceclasses",
		}
	}
	if r.all() {
		if missing := missingSlices(d.stock); missing != "" {
			return &finding{Blocker: blockerPoolIncomplete, Distance: distanceIncomplete, Text: "asks for all devices, and " + missing}
		}
	}
	left, short, f := d.ofClass(r, class)
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
	if f = d.free(r, sound); f != nil && len(tainted) > 0 {
		f.Text += fmt.Sprintf("; %d more %s", len(tainted), repelled(tainted))
		f.Hint = joined(append([]string{f.Hint}, remedies(tainted)...))
	}
	return f
}

// ofClass keeps the devices of the class. short is a finding for too few of them.
func (d *diagnosis) ofClass(r request, class *resourceapi.DeviceClass) (left []*devices.Device, short, f *finding) {
	left = d.stock.Devices
	for _, selector := range class.Spec.Selectors {
		passed, failed, f := d.sift(selector.CEL.Expression, left, fmt.Sprintf("asks for class %s, whose selector", class.Name))
		if f != nil {
			return nil, nil, f
		}
		if len(passed) == 0 {
			f := &finding{
				Blocker: blockerClass, Distance: distanceClass,
				Text: fmt.Sprintf("%s of class %s wanted, and the node has none: its devices are %s", r.wanted(), class.Name, tally(typesOf(failed))),
			}
			if d.offer.imagined {
				f.Hint = fmt.Sprintf("to offer class %s on such nodes, change the GPUPolicy that applies to them", class.Name)
			}
			return nil, nil, f
		}
		left = passed
	}
	if len(left) < r.least() {
		short = few(r, len(left), fmt.Sprintf("%s of class %s", excerpt.Count(len(left), "device"), class.Name))
	}
	return left, short, nil
}

// typesOf are the types that drivers publish of devices.
func typesOf(of []*devices.Device) []string {
	var words []string
	for _, d := range of {
		words = append(words, cmp.Or(ownText(d, gpu.AttributeType), "of "+d.ID.Pool.Driver))
	}
	return words
}

// few is the finding for a node that has too few devices, also when none is in use.
func few(r request, have int, what string) *finding {
	f := &finding{
		Blocker: blockerCount, Distance: distanceCount + 1 - float64(have)/float64(max(r.least(), have)),
		Text: fmt.Sprintf("%s wanted, and the node has %s", r.wanted(), what),
	}
	if have > 0 {
		f.Hint = fmt.Sprintf("ask for at most %d per pod, or for a larger node", have)
	}
	return f
}

// sift parts devices by an expression. If it fails on one device, the scheduler gives up, whatever the others are.
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

// selector keeps the devices that pass a selector of the request, with a finding if they are too few.
func (d *diagnosis) selector(r request, index int, from []*devices.Device) ([]*devices.Device, *finding) {
	expression := r.Selectors[index].CEL.Expression
	passed, failed, f := d.sift(expression, from, "the selector")
	if f != nil || len(passed) >= r.least() || len(failed) == 0 {
		return passed, f
	}
	blocked := d.nearest(expression, failed)
	before := fmt.Sprintf("%s of class %s", excerpt.Count(len(from), "device"), r.DeviceClassName)
	if index > 0 {
		before += fmt.Sprintf(" that passed %s before", excerpt.Count(index, "selector"))
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

// roomy keeps the devices whose capacities suffice when no claim uses them.
func (d *diagnosis) roomy(r request, from []*devices.Device) ([]*devices.Device, *finding) {
	var kept []*devices.Device
	first := ""
	for _, dev := range from {
		if why := r.tooSmall(dev); why == "" {
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
		Text: fmt.Sprintf("%s wanted, and %d of %s can be large enough: %s", r.wanted(), len(kept), excerpt.Count(len(from), "matching device"), first),
		Hint: cmp.Or(r.alone(from), "ask for less, or for a larger shape"),
	}
}

// alone is the hint for a request for a part of GPUs that one claim at a time gets whole; empty: it is none.
// NVIDIA's driver gives it a part, with consumable shares.
func (r request) alone(from []*devices.Device) string {
	if r.Capacity == nil {
		return ""
	}
	shares, memory := r.Capacity.Requests[gpu.CapacityShares], r.Capacity.Requests[gpu.CapacityMemory].DeepCopy()
	memory.Add(r.Capacity.Requests[gpu.CapacityMemory]) // a GPU has room for two
	for _, d := range from {
		has := d.Capacity[gpu.CapacityMemory].Value
		if d.Shared() || d.ID.Pool.Driver != slice.DefaultDriver || ownText(d, gpu.AttributeType) != (gpu.Whole{}).Type() ||
			shares.IsZero() && (memory.IsZero() || memory.Cmp(has) > 0) {
			continue
		}
		return "one claim at a time gets each whole GPU, whatever capacity it requests: set whole.consumableShares in the nodes' GPUPolicy, or consumableShares in the chart; or use the class timeslice.nvidia.com"
	}
	return ""
}

// untainted parts devices by whether the request tolerates their taints. tainted has the first taint that it does not.
func (r request) untainted(from []*devices.Device) (sound []*devices.Device, tainted []resourceapi.DeviceTaint) {
	for _, dev := range from {
		if taint := dev.Repels(r.Tolerations); taint != nil {
			tainted = append(tainted, *taint)
		} else {
			sound = append(sound, dev)
		}
	}
	return sound, tainted
}

// fewUntainted is the finding for taints that leave too few devices.
func fewUntainted(r request, left int, tainted []resourceapi.DeviceTaint) *finding {
	all := left + len(tainted)
	return &finding{
		Blocker: blockerTaint, Distance: distanceTaint + 1 - float64(left)/float64(max(r.least(), all)),
		Text: fmt.Sprintf("%s wanted; %d of %s %s; %d left", r.wanted(), len(tainted), excerpt.Count(all, "matching device"), repelled(tainted), left),
		Hint: joined(remedies(tainted)),
	}
}

// repelled says which taints keep new claims from devices.
func repelled(tainted []resourceapi.DeviceTaint) string {
	var words []string
	for _, taint := range tainted {
		word := "with the taint " + taintText(taint)
		if meaning, _ := slice.Meaning(taint.Key); meaning != "" {
			word += " (" + meaning + ")"
		}
		words = append(words, word)
	}
	return "get no new claims: " + tally(words)
}

// remedies say what to do about taints, each once.
func remedies(tainted []resourceapi.DeviceTaint) []string {
	var all []string
	for _, taint := range tainted {
		_, remedy := slice.Meaning(taint.Key)
		if remedy == "" {
			remedy = fmt.Sprintf("see kubectl get devicetaintrules for the taint %s", taint.Key)
		}
		if !slices.Contains(all, remedy) {
			all = append(all, remedy)
		}
	}
	slices.Sort(all)
	return append(all, "a claim that tolerates the taint gets the device anyway")
}

// joined leaves out empty hints.
func joined(hints []string) string {
	return strings.Join(slices.DeleteFunc(hints, func(hint string) bool { return hint == "" }), "; ")
}

func taintText(t resourceapi.DeviceTaint) string {
	text := t.Key
	if t.Value != "" {
		text += "=" + t.Value
	}
	return text + ":" + string(t.Effect)
}

// free is the finding for too few free devices; nil: the request can be allocated.
func (d *diagnosis) free(r request, from []*devices.Device) *finding {
	if d.allocates(false, r.withCount(r.least()), nil) {
		return nil
	}
	if f := d.inUse(r, from); f != nil {
		return f
	}
	// No claim has any of them: they exclude each other.
	if r.all() {
		f := few(r, len(from), fmt.Sprintf("%s that exclude each other", excerpt.Count(len(from), "matching device")))
		f.Hint = "ask for a number of devices"
		return f
	}
	most := d.most(true, r, nil)
	return few(r, most, fmt.Sprintf("room for %d at once of %s", most, excerpt.Count(len(from), "matching device")))
}

// inUse is the finding for devices that claims have; nil: claims have none of those that match.
func (d *diagnosis) inUse(r request, from []*devices.Device) *finding {
	var allocated, overlapping, full, free int
	var shares, counters string
	for _, dev := range from {
		short, tight := d.stock.Short(dev), d.stock.Crowded(dev, r.Capacity)
		switch {
		case r.admin:
			free++
		case d.stock.Taken(dev):
			allocated++
		case short != nil:
			overlapping++
			counters = cmp.Or(counters, fmt.Sprintf("%s of %s has %s left of the %s that %s takes", short.Counter, short.Set, amount(short.Left), amount(short.Need), dev.Name))
		case tight != nil:
			full++
			shares = cmp.Or(shares, fmt.Sprintf("%s has %s of %s %s left, %s is needed", dev.Name, amount(tight.Left), amount(tight.Of), tight.Capacity, amount(tight.Takes)))
		default:
			free++
		}
	}
	var parts []string
	blocker := blockerCapacity
	if full > 0 {
		parts = append(parts, fmt.Sprintf("%d too full (%s)", full, shares))
	}
	if overlapping > 0 {
		blocker = blockerCounters
		parts = append(parts, fmt.Sprintf("%d overlapping with what is allocated of the same GPU (%s)", overlapping, counters))
	}
	if allocated > 0 {
		blocker = blockerInUse
		parts = append(parts, fmt.Sprintf("%d allocated to claims", allocated))
	}
	if len(parts) == 0 {
		return nil
	}
	slices.Reverse(parts)
	if !r.all() && free >= r.least() {
		free = d.most(false, r, nil) // free devices may exclude each other
	}
	hint := ""
	if allocated > 0 {
		hint = r.alone(from)
	}
	return &finding{
		Hint:    hint,
		Blocker: blocker, Distance: distanceInUse + 1 - float64(free)/float64(max(r.least(), len(from))),
		Text: fmt.Sprintf("%s wanted, %d free; of %s %s", r.wanted(), free, excerpt.Count(len(from), "matching device"), strings.Join(parts, ", ")),
	}
}
