package explain

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"
)

// request is one of a claim, or one of the alternatives of firstAvailable.
type request struct {
	// name is request, or request/alternative.
	name, class string
	selectors   []resourceapi.DeviceSelector
	// devices is how many are wanted; all tells that every device that matches is.
	devices     int
	all, admin  bool
	tolerations []resourceapi.DeviceToleration
	capacity    *resourceapi.CapacityRequirements
}

// alternatives are the ways to satisfy a request of a claim, best first.
func alternatives(r resourceapi.DeviceRequest) []request {
	if r.Exactly != nil {
		e := r.Exactly
		return []request{{
			name: r.Name, class: e.DeviceClassName, selectors: e.Selectors,
			devices: devices(e.AllocationMode, e.Count), all: e.AllocationMode == resourceapi.DeviceAllocationModeAll,
			admin: ptr.Deref(e.AdminAccess, false), tolerations: e.Tolerations, capacity: e.Capacity,
		}}
	}
	var found []request
	for _, sub := range r.FirstAvailable {
		found = append(found, request{
			name: r.Name + "/" + sub.Name, class: sub.DeviceClassName, selectors: sub.Selectors,
			devices: devices(sub.AllocationMode, sub.Count), all: sub.AllocationMode == resourceapi.DeviceAllocationModeAll,
			tolerations: sub.Tolerations, capacity: sub.Capacity,
		})
	}
	return found
}

// devices is how many a request wants: claims that did not pass the API server, as those
// that are made of templates, may lack the default.
func devices(mode resourceapi.DeviceAllocationMode, count int64) int {
	if mode == resourceapi.DeviceAllocationModeAll {
		return 1
	}
	return int(cmp.Or(count, 1))
}

// wanted says how many devices.
func (r request) wanted() string {
	if r.all {
		return "all devices"
	}
	return count(r.devices, "device")
}

// repelled is the first taint of the device that the request does not tolerate.
func (r request) repelled(d *device) *resourceapi.DeviceTaint {
	for i, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		tolerated := slices.ContainsFunc(r.tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		})
		if !tolerated {
			return &d.Taints[i]
		}
	}
	return nil
}

// consumes is how much of a capacity the request takes of a shared device: what it asks
// for, rounded up as the device's policy says, or the policy's default.
func (r request) consumes(d *device, name resourceapi.QualifiedName) resource.Quantity {
	capacity := d.Capacity[name]
	policy := capacity.RequestPolicy
	asked, ok := r.asked(name)
	switch {
	case !ok && policy != nil && policy.Default != nil:
		return policy.Default.DeepCopy()
	case !ok:
		return capacity.Value.DeepCopy()
	case policy == nil:
		return asked
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundUp(asked, *policy.ValidRange)
	}
	for _, value := range policy.ValidValues {
		if asked.Cmp(value) <= 0 {
			return value.DeepCopy()
		}
	}
	return asked
}

func (r request) asked(name resourceapi.QualifiedName) (resource.Quantity, bool) {
	if r.capacity == nil {
		return resource.Quantity{}, false
	}
	asked, ok := r.capacity.Requests[name]
	return asked.DeepCopy(), ok
}

func roundUp(asked resource.Quantity, valid resourceapi.CapacityRequestPolicyRange) resource.Quantity {
	if asked.Cmp(*valid.Min) < 0 {
		return valid.Min.DeepCopy()
	}
	if valid.Step == nil || valid.Step.Value() <= 0 {
		return asked
	}
	step, least := valid.Step.Value(), valid.Min.Value()
	above := asked.Value() - least
	if remainder := above % step; remainder != 0 {
		return *resource.NewQuantity(asked.Value()-remainder+step, valid.Step.Format)
	}
	return asked
}

// never says why the device could not give what the request asks of its capacities even if
// nobody else had any; empty: it could.
func (r request) never(d *device) string {
	if r.capacity == nil {
		return ""
	}
	for _, name := range sortedKeys(r.capacity.Requests) {
		capacity, ok := d.Capacity[name]
		asked := r.capacity.Requests[name]
		if !ok {
			return fmt.Sprintf("%s has no capacity %s, of which %s is asked", d.Name, name, amount(asked))
		}
		most := capacity.Value
		if p := capacity.RequestPolicy; p != nil && p.ValidRange != nil && p.ValidRange.Max != nil && p.ValidRange.Max.Cmp(most) < 0 {
			most = *p.ValidRange.Max
		}
		takes := r.consumes(d, name)
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

// crowded is the first capacity of a shared device of which too little is left.
func (r request) crowded(s *stock, d *device) *squeeze {
	if !d.shared() {
		return nil
	}
	for _, name := range sortedKeys(d.Capacity) {
		left := d.Capacity[name].Value.DeepCopy()
		left.Sub(s.consumed[d.id][name])
		takes := r.consumes(d, name)
		if takes.Cmp(left) > 0 {
			return &squeeze{capacity: name, takes: takes, left: left, of: d.Capacity[name].Value}
		}
	}
	return nil
}

// squeeze is a capacity of which there is not enough.
type squeeze struct {
	capacity        resourceapi.QualifiedName
	takes, left, of resource.Quantity
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
func (r request) can(s *stock, d *device) obstacle {
	switch {
	case r.admin:
		return none
	case s.taken[d.id]:
		return inUse
	case s.short(d) != nil:
		return shortOfCounters
	case r.crowded(s, d) != nil:
		return crowded
	}
	return none
}

// draw takes devices one after the other until the request has what it wants, and gives
// those that it got.
func (r request) draw(s *stock, from []*device) []*device {
	var got []*device
	for _, d := range from {
		if !r.all && len(got) == r.devices {
			break
		}
		if r.can(s, d) == none {
			s.take(d, r)
			got = append(got, d)
		}
	}
	return got
}

// enough tells whether so many of the devices that match are enough.
func (r request) enough(got, matching int) bool {
	if r.all {
		return got > 0 && got == matching
	}
	return got >= r.devices
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
