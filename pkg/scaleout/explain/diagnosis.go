package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
)

// Finding is the first thing that blocks claims on a node.
type Finding struct {
	// Blocker is one of the constants, or a fit.Reason.
	Blocker string
	// Text is a sentence with the numbers, Hint what to do, or empty.
	Text, Hint string
	// Distance orders findings: the smaller, the nearer the claims were to a fit.
	Distance float64
}

// Blockers: what findings are of, beside the reasons of package fit.
const (
	BlockerNoDevices      = "NoDevices"
	BlockerPoolIncomplete = "PoolIncomplete"
	BlockerClass          = "Class"
	BlockerSelector       = "Selector"
	BlockerSelectorError  = "SelectorError"
	BlockerCapacity       = "Capacity"
	BlockerTaint          = "DeviceTaint"
	BlockerInUse          = "InUse"
	BlockerCounters       = "Counters"
	BlockerCount          = "Count"
	BlockerConstraint     = "Constraint"
	BlockerTogether       = "Together"
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

// Claim is one of a pod.
type Claim struct {
	*resourceapi.ResourceClaim
	// Called is how the pod's owner calls it: claim "gpus", extended resource nvidia.com/gpu.
	Called string
}

// Diagnoser finds out why claims do not fit. It keeps what it has compiled and evaluated.
// It is not safe for concurrent use.
type Diagnoser struct {
	classes   map[string]*resourceapi.DeviceClass
	compiled  *cel.Cache
	split     map[string][]conjunct
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

// compiledSelectors bounds what is kept of compiled expressions.
const compiledSelectors = 1000

// NewDiagnoser knows the classes.
func NewDiagnoser(classes []*resourceapi.DeviceClass) *Diagnoser {
	d := &Diagnoser{
		classes:   make(map[string]*resourceapi.DeviceClass, len(classes)),
		compiled:  cel.NewCache(compiledSelectors, cel.Features{EnableConsumableCapacity: true}),
		split:     map[string][]conjunct{},
		evaluated: map[evaluation]result{},
	}
	for _, class := range classes {
		d.classes[class.Name] = class
	}
	return d
}

// Diagnose finds the first thing that blocks claims which do not fit on what a node offers.
// It takes devices as they come and does not search: where it can give each claim what it
// asks for, the finding is that they do not fit together.
func (d *Diagnoser) Diagnose(ctx context.Context, o Offer, claims []Claim) Finding {
	s := newStock(o)
	if len(s.devices) == 0 {
		return nothing(s)
	}
	diagnosis := &diagnosis{Diagnoser: d, ctx: ctx, offer: o}
	left := s.clone()
	for i, claim := range claims {
		if f := diagnosis.claim(s, claim); f != nil {
			return *f
		}
		if !diagnosis.draw(left, claim) {
			return together(names(claims[:i]), claim.Called)
		}
	}
	return Finding{
		Blocker: BlockerTogether, Distance: distanceTogether,
		Text: fmt.Sprintf("the devices for %s are there, but no choice of them satisfies everything at once", names(claims)),
		Hint: "ask for fewer devices, or for fewer that have to be alike",
	}
}

// nothing is said of a node without devices.
func nothing(s *stock) Finding {
	for _, p := range s.pools {
		if !p.complete() {
			return Finding{
				Blocker: BlockerPoolIncomplete, Distance: distanceIncomplete,
				Text: fmt.Sprintf("of pool %s of driver %s %d of %d slices are published", p.name, p.driver, len(p.slices), p.want),
				Hint: "see the log of the driver's plugin on the node, if this stays",
			}
		}
	}
	return Finding{Blocker: BlockerNoDevices, Distance: distanceNoDevices, Text: "no driver offers any device there"}
}

func names(claims []Claim) string {
	var called []string
	for _, claim := range claims {
		called = append(called, claim.Called)
	}
	return strings.Join(called, " and ")
}

func together(others, one string) Finding {
	return Finding{
		Blocker: BlockerTogether, Distance: distanceTogether,
		Text: fmt.Sprintf("%s fits by itself, but not beside %s: too few devices are left for it", one, others),
		Hint: "ask for fewer devices, or spread them over several pods",
	}
}

// diagnosis is of one node.
type diagnosis struct {
	*Diagnoser
	ctx   context.Context
	offer Offer
}

// claim looks at one claim alone.
func (d *diagnosis) claim(s *stock, claim Claim) *Finding {
	for _, r := range claim.Spec.Devices.Requests {
		if f := d.request(s, claim, r); f != nil {
			return f
		}
	}
	if f := d.constraints(s, claim); f != nil {
		return f
	}
	left := s.clone()
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
func (d *diagnosis) draw(s *stock, claim Claim) bool {
	for _, r := range claim.Spec.Devices.Requests {
		if !d.drawRequest(s, r) {
			return false
		}
	}
	return true
}

func (d *diagnosis) drawRequest(s *stock, r resourceapi.DeviceRequest) bool {
	for _, alternative := range alternatives(r) {
		matching := d.eligible(s, alternative)
		trial := s.clone()
		if alternative.enough(len(alternative.draw(trial, matching)), len(matching)) {
			*s = *trial
			return true
		}
	}
	return false
}

// eligible are the devices that the request could have of an unused node.
func (d *diagnosis) eligible(s *stock, r request) []*device {
	class := d.classes[r.class]
	if class == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(s.devices), func(dev *device) bool {
		return !d.passes(class.Spec.Selectors, dev) || !d.passes(r.selectors, dev) || r.never(dev) != "" || r.repelled(dev) != nil
	})
}

func (d *diagnosis) passes(selectors []resourceapi.DeviceSelector, dev *device) bool {
	for _, selector := range selectors {
		if selector.CEL != nil {
			if got := d.evaluate(d.ctx, selector.CEL.Expression, dev); !got.matches {
				return false
			}
		}
	}
	return true
}

// request looks at one request alone: all its alternatives have to be blocked.
func (d *diagnosis) request(s *stock, claim Claim, r resourceapi.DeviceRequest) *Finding {
	var found []Finding
	for _, alternative := range alternatives(r) {
		f := d.funnel(s, alternative)
		if f == nil {
			return nil
		}
		if len(r.FirstAvailable) > 0 {
			f.Text = "alternative " + alternative.name + ": " + f.Text
		}
		found = append(found, *f)
	}
	if len(found) == 0 {
		return nil
	}
	nearest := slices.MinFunc(found, byDistance)
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

func byDistance(a, b Finding) int {
	switch {
	case a.Distance < b.Distance:
		return -1
	case a.Distance > b.Distance:
		return 1
	}
	return 0
}

// evaluate says whether the device passes.
func (d *Diagnoser) evaluate(ctx context.Context, expression string, dev *device) result {
	key := evaluation{expression, dev.Device}
	if known, ok := d.evaluated[key]; ok {
		return known
	}
	compiled := d.compiled.GetOrCompile(expression)
	if compiled.Error != nil {
		return result{err: fmt.Errorf("it does not compile: %s", compiled.Error.Detail)}
	}
	matches, _, err := compiled.DeviceMatches(ctx, dev.input())
	if ctx.Err() != nil {
		return result{err: ctx.Err()}
	}
	d.evaluated[key] = result{matches, err}
	return result{matches, err}
}

// conjuncts are those of the expression.
func (d *Diagnoser) conjuncts(expression string) []conjunct {
	known, ok := d.split[expression]
	if !ok {
		known = conjuncts(expression)
		d.split[expression] = known
	}
	return known
}
