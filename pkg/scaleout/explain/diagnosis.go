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
	// Text is a sentence with the numbers. Hint is what to do, or empty.
	Text string `json:"text,omitempty"`
	Hint string `json:"hint,omitempty"`
	// Distance orders findings: the smaller, the nearer the claims are to a fit.
	Distance float64 `json:"-"`
}

// Blockers, beside the reasons of package fit.
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

// Distances. Devices that have to become free are nearer than a claim that has to change, and that is nearer than
// devices that no such node has.
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

// podClaim is a claim of a pod.
type podClaim struct {
	*resourceapi.ResourceClaim
	// Called is its name for the pod's owner: claim "gpus", extended resource nvidia.com/gpu.
	Called string
}

// offer is what a node has for claims.
type offer struct {
	slices []*resourceapi.ResourceSlice
	used   devices.Use
	// imagined reports whether the node does not exist yet, so that some attributes are unknown.
	imagined bool
	// allocates reports whether the scheduler's allocator finds devices for a claim or several, on the node as it is or
	// unused.
	allocates func(ctx context.Context, unused bool, claims ...*resourceapi.ResourceClaim) bool
}

// diagnoser finds out why claims do not fit. It caches evaluations, and is not safe for concurrent use.
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

// diagnosis is of one node.
type diagnosis struct {
	*diagnoser
	ctx   context.Context
	offer offer
	stock *devices.Stock
}

// diagnose returns the first thing that blocks claims which do not fit on a node. It asks the allocator for a part of
// the claims at a time: a request alone, more requests, then the constraints, then more claims.
func (d *diagnoser) diagnose(ctx context.Context, o offer, claims []podClaim) finding {
	q := &diagnosis{diagnoser: d, ctx: ctx, offer: o, stock: devices.NewStock(o.slices, o.used)}
	if len(q.stock.Devices) == 0 {
		return nothing(q.stock)
	}
	var before []*resourceapi.ResourceClaim
	for i, claim := range claims {
		if f := q.claim(claim); f != nil {
			return *f
		}
		if before = append(before, claim.ResourceClaim); i > 0 && !o.allocates(ctx, false, before...) {
			return together(names(claims[:i]), claim.Called)
		}
	}
	return finding{
		Blocker: blockerTogether, Distance: distanceTogether,
		Text: fmt.Sprintf("the devices for %s exist, but not in one choice that satisfies everything", names(claims)),
		Hint: "ask for fewer devices, or for fewer that have to be alike",
	}
}

// nothing is the finding for a node without devices.
func nothing(s *devices.Stock) finding {
	if missing := missingSlices(s); missing != "" {
		return finding{
			Blocker: blockerPoolIncomplete, Distance: distanceIncomplete, Text: missing,
			Hint: "if this stays, see the log of the driver's plugin on the node",
		}
	}
	return finding{Blocker: blockerNoDevices, Distance: distanceNoDevices, Text: "no driver offers any device there"}
}

// missingSlices counts those of the first incomplete pool, if there is one.
func missingSlices(s *devices.Stock) string {
	p := s.Incomplete()
	if p == nil {
		return ""
	}
	return fmt.Sprintf("pool %s of driver %s has published %d of %d slices", p.ID.Name, p.ID.Driver, len(p.Slices), p.Announced())
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

// claim is the finding for one claim alone; nil: it fits.
func (d *diagnosis) claim(claim podClaim) *finding {
	requests := claim.Spec.Devices.Requests
	for _, r := range requests {
		if f := d.request(claim, r); f != nil {
			return f
		}
	}
	for i := 1; i < len(requests); i++ {
		if d.allocates(false, requests[:i+1], nil) {
			continue
		}
		var before []string
		for _, other := range requests[:i] {
			before = append(before, other.Name)
		}
		f := together("request "+strings.Join(before, ", "), "request "+requests[i].Name)
		f.Text = claim.Called + ": " + f.Text
		return &f
	}
	return d.constraints(claim)
}

// allocates reports whether a claim of these requests and constraints can be allocated.
func (d *diagnosis) allocates(unused bool, requests []resourceapi.DeviceRequest, constraints []resourceapi.DeviceConstraint) bool {
	claim := &resourceapi.ResourceClaim{}
	claim.Spec.Devices.Requests, claim.Spec.Devices.Constraints = requests, constraints
	return d.offer.allocates(d.ctx, unused, claim)
}

// most is the greatest number of devices, below the requested one, that a request can have under the constraints.
func (d *diagnosis) most(unused bool, r request, constraints []resourceapi.DeviceConstraint) int {
	low, high := 0, r.least()-1
	for low < high {
		n := (low + high + 1) / 2
		if d.allocates(unused, r.withCount(n), constraints) {
			low = n
		} else {
			high = n - 1
		}
	}
	return low
}

// request is the finding for one request alone: each of its alternatives has to be blocked.
func (d *diagnosis) request(claim podClaim, r resourceapi.DeviceRequest) *finding {
	var found []finding
	for _, alternative := range alternatives(r) {
		f := d.funnel(alternative)
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
