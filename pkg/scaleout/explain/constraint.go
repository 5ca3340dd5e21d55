package explain

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// constraints is the finding for the first constraint under which the claim's requests do not fit; nil: there is none.
func (d *diagnosis) constraints(claim podClaim) *finding {
	spec := claim.Spec.Devices
	for i := range spec.Constraints {
		constraints := spec.Constraints[:i+1]
		if d.allocates(false, spec.Requests, constraints) {
			continue
		}
		f := d.constraint(spec.Requests, constraints)
		f.Blocker = blockerConstraint
		f.Text = claim.Called + ": " + f.Text
		return f
	}
	return nil
}

// constraint is the finding for the last of some constraints.
func (d *diagnosis) constraint(requests []resourceapi.DeviceRequest, constraints []resourceapi.DeviceConstraint) *finding {
	last := constraints[len(constraints)-1]
	attribute, how := last.MatchAttribute, "the same"
	if attribute == nil {
		attribute, how = last.DistinctAttribute, "different"
	}
	f := &finding{Distance: distanceConstraint + 1}
	if attribute == nil {
		f.Text = "the scheduler does not know this kind of constraint"
		return f
	}
	domain, id, _ := strings.Cut(string(*attribute), "/")
	field := devices.Field{Section: devices.SectionAttributes, Domain: domain, Name: id}
	if !slices.ContainsFunc(d.stock.Devices, func(dev *devices.Device) bool { return dev.AttributeAt(field) != nil }) {
		f.Text = fmt.Sprintf("devices with %s %s wanted, and no device has this attribute", how, *attribute)
		return f
	}
	if len(d.offer.used) > 0 && d.allocates(true, requests, constraints) {
		f.Distance = distanceInUse + 1
		f.Text = fmt.Sprintf("devices with %s %s wanted, and too many of them are allocated to claims", how, *attribute)
		return f
	}
	f.Text = fmt.Sprintf("devices with %s %s wanted, and the node has too few", how, *attribute)
	if r := alternatives(requests[0]); len(requests) == 1 && len(r) == 1 && !r[0].all() {
		most := d.most(true, r[0], constraints)
		f.Distance -= float64(most) / float64(r[0].least())
		f.Text = fmt.Sprintf("%s with %s %s wanted, and the node has %d at most", excerpt.Count(r[0].least(), "device"), how, *attribute, most)
		f.Hint = fmt.Sprintf("ask for at most %d, or leave the constraint out", max(most, 1))
	}
	return f
}
