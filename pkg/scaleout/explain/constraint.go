package explain

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// constraints looks whether the devices that each request could have can be alike, or
// different, as the claim wants them. Constraints are looked at one by one.
func (d *diagnosis) constraints(s *devices.Stock, claim podClaim) *finding {
	for _, c := range claim.Spec.Devices.Constraints {
		var f *finding
		switch {
		case c.MatchAttribute != nil:
			same := attributeField(string(*c.MatchAttribute))
			if f = d.match(s, claim, c, same); f != nil && d.match(devices.NewStock(d.offer.slices, nil), claim, c, same) == nil {
				f.Distance = distanceInUse + f.Distance - distanceConstraint
				f.Text, f.Hint = f.Text+"; the others are allocated", ""
			}
		case c.DistinctAttribute != nil:
			f = d.distinct(s, claim, c, attributeField(string(*c.DistinctAttribute)))
		}
		if f != nil {
			f.Blocker = blockerConstraint
			f.Text = claim.Called + ": " + f.Text
			return f
		}
	}
	return nil
}

func attributeField(name string) devices.Field {
	domain, id, _ := strings.Cut(name, "/")
	return devices.Field{Section: devices.SectionAttributes, Domain: domain, Name: id}
}

// bound are the claim's requests that the constraint is about.
func bound(claim podClaim, c resourceapi.DeviceConstraint) []resourceapi.DeviceRequest {
	if len(c.Requests) == 0 {
		return claim.Spec.Devices.Requests
	}
	var found []resourceapi.DeviceRequest
	for _, r := range claim.Spec.Devices.Requests {
		named := slices.ContainsFunc(c.Requests, func(name string) bool {
			parent, _, _ := strings.Cut(name, "/")
			return parent == r.Name
		})
		if named {
			found = append(found, r)
		}
	}
	return found
}

// tied sums up what requests get together when they may have only some of the devices.
func (d *diagnosis) tied(s *devices.Stock, requests []resourceapi.DeviceRequest, may func(*devices.Device) bool) (got, wanted int) {
	left := s.Clone()
	for _, r := range requests {
		most, of := 0, 0
		var after *devices.Stock
		for _, alternative := range alternatives(r) {
			all := d.eligible(left, alternative)
			from := slices.DeleteFunc(slices.Clone(all), func(dev *devices.Device) bool { return !may(dev) })
			need := alternative.least()
			if alternative.all() {
				need = len(all)
			}
			trial := left.Clone()
			if n := alternative.draw(trial, from); after == nil || n*max(of, 1) > most*need {
				most, of, after = n, need, trial
			}
		}
		if after != nil {
			left = after
		}
		got, wanted = got+most, wanted+of
	}
	return got, wanted
}

// match looks for the value that most devices have.
func (d *diagnosis) match(s *devices.Stock, claim podClaim, c resourceapi.DeviceConstraint, f devices.Field) *finding {
	requests := bound(claim, c)
	values := d.attributeValues(s, requests, f)
	best, bestOf, value := 0, 0, ""
	for _, v := range values {
		got, wanted := d.tied(s, requests, func(dev *devices.Device) bool { return slices.Contains(elements(dev.AttributeAt(f)), v) })
		if got >= wanted {
			return nil
		}
		if got > best || bestOf == 0 {
			best, bestOf, value = got, wanted, v
		}
	}
	if len(values) == 0 {
		return unpublished(f, "the same")
	}
	return &finding{
		Distance: distanceConstraint + 1 - float64(best)/float64(bestOf),
		Text: fmt.Sprintf("%s wanted with the same %s/%s, and the most that can be had with one value (%s) are %d of %d",
			count(bestOf, "device"), f.Domain, f.Name, value, best, bestOf),
		Hint: fmt.Sprintf("ask for at most %d, or leave the constraint out", max(best, 1)),
	}
}

// distinct counts the values that there are.
func (d *diagnosis) distinct(s *devices.Stock, claim podClaim, c resourceapi.DeviceConstraint, f devices.Field) *finding {
	requests := bound(claim, c)
	values := d.attributeValues(s, requests, f)
	if len(values) == 0 {
		return unpublished(f, "different")
	}
	_, wanted := d.tied(s, requests, func(*devices.Device) bool { return true })
	if len(values) >= wanted {
		return nil
	}
	return &finding{
		Distance: distanceConstraint + 1 - float64(len(values))/float64(wanted),
		Text:     fmt.Sprintf("%s wanted with different %s/%s, and there are %d values of it", count(wanted, "device"), f.Domain, f.Name, len(values)),
		Hint:     fmt.Sprintf("ask for at most %d, or leave the constraint out", len(values)),
	}
}

func unpublished(f devices.Field, how string) *finding {
	return &finding{
		Distance: distanceConstraint + 1,
		Text:     fmt.Sprintf("devices wanted with %s %s/%s, and none of those that match has that attribute", how, f.Domain, f.Name),
	}
}

// attributeValues are those of the devices that the requests could have, in their order.
func (d *diagnosis) attributeValues(s *devices.Stock, requests []resourceapi.DeviceRequest, f devices.Field) []string {
	var values []string
	for _, r := range requests {
		for _, alternative := range alternatives(r) {
			for _, dev := range d.eligible(s, alternative) {
				for _, v := range elements(dev.AttributeAt(f)) {
					if !slices.Contains(values, v) {
						values = append(values, v)
					}
				}
			}
		}
	}
	return values
}

// elements are an attribute's values: devices match that have one in common.
func elements(a *resourceapi.DeviceAttribute) []string {
	if a == nil {
		return nil
	}
	var values []string
	for _, v := range a.StringValues {
		values = append(values, attributeText(resourceapi.DeviceAttribute{StringValue: ptr.To(v)}))
	}
	for _, v := range a.IntValues {
		values = append(values, attributeText(resourceapi.DeviceAttribute{IntValue: ptr.To(v)}))
	}
	values = append(values, a.VersionValues...)
	for _, v := range a.BoolValues {
		values = append(values, fmt.Sprint(v))
	}
	if len(values) == 0 {
		values = append(values, attributeText(*a))
	}
	return values
}
