package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// request is one of a claim, or an alternative of firstAvailable, named request/alternative.
type request struct {
	resourceapi.DeviceSubRequest
	admin bool
}

// alternatives are the ways to satisfy a request of a claim, best first.
func alternatives(r resourceapi.DeviceRequest) []request {
	if e := r.Exactly; e != nil {
		return []request{{admin: ptr.Deref(e.AdminAccess, false), DeviceSubRequest: resourceapi.DeviceSubRequest{
			Name: r.Name, DeviceClassName: e.DeviceClassName, Selectors: e.Selectors,
			AllocationMode: e.AllocationMode, Count: e.Count, Tolerations: e.Tolerations, Capacity: e.Capacity,
		}}}
	}
	var found []request
	for _, sub := range r.FirstAvailable {
		sub.Name = r.Name + "/" + sub.Name
		found = append(found, request{DeviceSubRequest: sub})
	}
	return found
}

// all tells that every device that matches is wanted.
func (r request) all() bool { return r.AllocationMode == resourceapi.DeviceAllocationModeAll }

// least is how many devices are wanted, of all of them one at least.
func (r request) least() int {
	if r.all() {
		return 1
	}
	return int(r.Count)
}

// wanted says how many devices.
func (r request) wanted() string {
	if r.all() {
		return "all devices"
	}
	return count(r.least(), "device")
}

// never says why the device could not give what the request asks of its capacities even if
// nobody else had any; empty: it could.
func (r request) never(d *devices.Device) string {
	if r.Capacity == nil {
		return ""
	}
	for _, name := range sortedKeys(r.Capacity.Requests) {
		capacity, ok := d.Capacity[name]
		asked := r.Capacity.Requests[name]
		if !ok {
			return fmt.Sprintf("%s has no capacity %s, of which %s is asked", d.Name, name, amount(asked))
		}
		most := capacity.Value
		if p := capacity.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Max != nil && p.ValidRange.Max.Cmp(most) < 0 {
			most = *p.ValidRange.Max
		}
		takes := d.Consumes(name, r.Capacity)
		if takes.Cmp(most) > 0 {
			return fmt.Sprintf("%s of %s is asked%s, of which %s gives %s at most", amount(asked), name, taking(asked, takes), d.Name, amount(most))
		}
		if p := capacity.RequestPolicy; p != nil && len(p.ValidValues) > 0 && !slices.ContainsFunc(p.ValidValues, func(v resource.Quantity) bool { return v.Cmp(takes) == 0 }) {
			return fmt.Sprintf("%s of %s is asked, of which %s gives %s at most", amount(asked), name, d.Name, amount(p.ValidValues[len(p.ValidValues)-1]))
		}
	}
	return ""
}

// taking tells what a request is rounded up to.
func taking(asked, takes resource.Quantity) string {
	if asked.Cmp(takes) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%s in the device's steps)", amount(takes))
}

// obstacle is why the device cannot be had now.
type obstacle int

const (
	none obstacle = iota
	inUse
	shortOfCounters
	crowded
)

// can tells whether the request can have the device of what is left.
func (r request) can(s *devices.Stock, d *devices.Device) obstacle {
	switch {
	case r.admin:
		return none
	case s.Taken(d):
		return inUse
	case s.Short(d) != nil:
		return shortOfCounters
	case s.Crowded(d, r.Capacity) != nil:
		return crowded
	}
	return none
}

// draw takes devices one after the other until the request has what it wants, and counts them.
func (r request) draw(s *devices.Stock, from []*devices.Device) int {
	got := 0
	for _, d := range from {
		if !r.all() && got == r.least() {
			break
		}
		if r.can(s, d) != none {
			continue
		}
		if !r.admin {
			s.Take(d, r.Capacity)
		}
		got++
	}
	return got
}

// enough tells whether so many of the devices that match are enough.
func (r request) enough(got, matching int) bool {
	if r.all() {
		return got > 0 && got == matching
	}
	return got >= r.least()
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
