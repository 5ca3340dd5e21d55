package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// finding is the first thing that blocks claims on a node.
type finding struct {
	// Blocker is a word for programs: one of the constants, or a fit.Reason.
	Blocker string `json:"blocker,omitempty"`
	// Text is a sentence with the numbers, Hint what to do, or empty.
	Text string `json:"text,omitempty"`
	Hint string `json:"hint,omitempty"`
	// Distance orders findings: the smaller, the nearer the claims were to a fit.
	Distance float64 `json:"-"`
}

// Blockers: what findings are of, beside the reasons of package fit.
const (
	blockerNoDevices      = "NoDevices"
	blockerPoolIncomplete = "PoolIncomplete"
	blockerClass          = "Class"
	blockerSelector       = "Selector"
	blockerSelectorError  = "SelectorError"
	blockerCapacity       = "Capacity"
	blockerTaint          = "DeviceTaint"
	blockerInUse          = "InUse"
	blockerCounters       = "Counters"
	blockerCount          = "Count"
	blockerConstraint     = "Constraint"
	blockerTogether       = "Together"
)

// Distances: what has only to become free is nearer than what has to be made otherwise, and
// that is nearer than what no such node will ever have.
const (
	distanceInUse      = 10
	distanceTaint      = 20
	distanceCount      = 30
	distanceConstraint = 33
	distanceTogether   = 35
	distanceCapacity   = 38
	distanceSelector   = 40
	distanceError      = 50
	distanceClass      = 60
	distanceIncomplete = 65
	distanceNoDevices  = 70
)

// podClaim is one of a pod.
type podClaim struct {
	*resourceapi.ResourceClaim
	// Called is how the pod's owner calls it: claim "gpus", extended resource nvidia.com/gpu.
	Called string
}

// offer is what a node has for claims.
type offer struct {
	slices []*resourceapi.ResourceSlice
	used   devices.Use
	// imagined tells that the node does not exist: what only a node knows is not there.
	imagined bool
}

// diagnoser finds out why claims do not fit. It keeps what it has evaluated.
// It is not safe for concurrent use.
type diagnoser struct {
	classes   map[string]*resourceapi.DeviceClass
	selectors *devices.Selectors
	evaluated map[evaluation]result
}

// evaluation is of an expression on a device.
type evaluation struct {
	expression string
	device     *resourceapi.Device
}

type result struct {
	matches bool
	err     error
}

func newDiagnoser(classes []*resourceapi.DeviceClass, selectors *devices.Selectors) *diagnoser {
	d := &diagnoser{classes: map[string]*resourceapi.DeviceClass{}, selectors: selectors, evaluated: map[evaluation]result{}}
	for _, class := range classes {
		d.classes[class.Name] = class
	}
	return d
}

// diagnose finds the first thing that blocks claims which do not fit on what a node offers.
// It takes devices as they come and does not search: where it can give each claim what it
// asks for, the finding is that they do not fit together.
func (d *diagnoser) diagnose(ctx context.Context, o offer, claims []podClaim) finding {
	s := devices.NewStock(o.slices, o.used)
	if len(s.Devices) == 0 {
		return nothing(s)
	}
	diagnosis := &diagnosis{diagnoser: d, ctx: ctx, offer: o}
	left := s.Clone()
	for i, claim := range claims {
		if f := diagnosis.claim(s, claim); f != nil {
			return *f
		}
		if !diagnosis.draw(left, claim) {
			return together(names(claims[:i]), claim.Called)
		}
	}
	return finding{
		Blocker: blockerTogether, Distance: distanceTogether,
		Text: fmt.Sprintf("the devices for %s are there, but no choice of them satisfies everything at once", names(claims)),
		Hint: "ask for fewer devices, or for fewer that have to be alike",
	}
}

// nothing is said of a node without devices.
func nothing(s *devices.Stock) finding {
	if missing := missingSlices(s); missing != "" {
		return finding{
			Blocker: blockerPoolIncomplete, Distance: distanceIncomplete, Text: missing,
			Hint: "see the log of the driver's plugin on the node, if this stays",
		}
	}
	return finding{Blocker: blockerNoDevices, Distance: distanceNoDevices, Text: "no driver offers any device there"}
}

// missingSlices counts those of the first pool that is not complete, if there is one.
func missingSlices(s *devices.Stock) string {
	p := s.Incomplete()
	if p == nil {
		return ""
	}
	return fmt.Sprintf("of pool %s of driver %s %d of %d slices are published", p.ID.Name, p.ID.Driver, len(p.Slices), p.Announced())
}

func names(claims []podClaim) string {
	var called []string
	for _, claim := range claims {
		called = append(called, claim.Called)
	}
	return strings.Join(called, " and ")
}

func together(others, one string) finding {
	return finding{
		Blocker: blockerTogether, Distance: distanceTogether,
		Text: fmt.Sprintf("%s fits by itself, but not beside %s: too few devices are left for it", one, others),
		Hint: "ask for fewer devices, or spread them over several pods",
	}
}

// diagnosis is of one node.
type diagnosis struct {
	*diagnoser
	ctx   context.Context
	offer offer
}

// claim looks at one claim alone.
func (d *diagnosis) claim(s *devices.Stock, claim podClaim) *finding {
	for _, r := range claim.Spec.Devices.Requests {
		if f := d.request(s, claim, r); f != nil {
			return f
		}
	}
	if f := d.constraints(s, claim); f != nil {
		return f
	}
	left := s.Clone()
	for i, r := range claim.Spec.Devices.Requests {
		if d.drawRequest(left, r) {
			continue
		}
		var before []string
		for _, other := range claim.Spec.Devices.Requests[:i] {
			before = append(before, other.Name)
		}
		f := together("request "+strings.Join(before, ", "), "request "+r.Name)
		f.Text = claim.Called + ": " + f.Text
		return &f
	}
	return nil
}

// draw takes what the claim gets of the stock, and tells whether that is all it asks for.
func (d *diagnosis) draw(s *devices.Stock, claim podClaim) bool {
	for _, r := range claim.Spec.Devices.Requests {
		if !d.drawRequest(s, r) {
			return false
		}
	}
	return true
}

func (d *diagnosis) drawRequest(s *devices.Stock, r resourceapi.DeviceRequest) bool {
	for _, alternative := range alternatives(r) {
		matching := d.eligible(s, alternative)
		trial := s.Clone()
		if alternative.enough(alternative.draw(trial, matching), len(matching)) {
			*s = *trial
			return true
		}
	}
	return false
}

// eligible are the devices that the request could have of an unused node.
func (d *diagnosis) eligible(s *devices.Stock, r request) []*devices.Device {
	class := d.classes[r.DeviceClassName]
	if class == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.Devices), func(dev *devices.Device) bool {
		return !d.passes(class.Spec.Selectors, dev) || !d.passes(r.Selectors, dev) || r.never(dev) != "" || dev.Repels(r.Tolerations) != nil
	})
}

func (d *diagnosis) passes(selectors []resourceapi.DeviceSelector, dev *devices.Device) bool {
	for _, selector := range selectors {
		if !d.evaluate(d.ctx, selector.CEL.Expression, dev).matches {
			return false
		}
	}
	return true
}

// request looks at one request alone: all its alternatives have to be blocked.
func (d *diagnosis) request(s *devices.Stock, claim podClaim, r resourceapi.DeviceRequest) *finding {
	var found []finding
	for _, alternative := range alternatives(r) {
		f := d.funnel(s, alternative)
		if f == nil {
			return nil
		}
		if len(r.FirstAvailable) > 0 {
			f.Text = "alternative " + alternative.Name + ": " + f.Text
		}
		found = append(found, *f)
	}
	if len(found) == 0 {
		return nil
	}
	nearest := slices.MinFunc(found, func(a, b finding) int { return cmp.Compare(a.Distance, b.Distance) })
	if len(found) > 1 {
		texts := make([]string, len(found))
		for i, f := range found {
			texts[i] = f.Text
		}
		nearest.Text = strings.Join(texts, "; ")
	}
	nearest.Text = fmt.Sprintf("request %s of %s: %s", r.Name, claim.Called, nearest.Text)
	return &nearest
}

// evaluate says whether the device passes.
func (d *diagnoser) evaluate(ctx context.Context, expression string, dev *devices.Device) result {
	key := evaluation{expression, dev.Device}
	if known, ok := d.evaluated[key]; ok {
		return known
	}
	matches, err := d.selectors.Get(expression).Matches(ctx, dev.Input())
	if ctx.Err() != nil {
		return result{err: ctx.Err()}
	}
	d.evaluated[key] = result{matches, err}
	return result{matches, err}
}
