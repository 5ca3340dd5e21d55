package devices

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Consumes returns what a request takes of a capacity of a shared device: the requested amount, rounded
// up by the device's policy, or the policy's default.
func (d *Device) Consumes(name resourceapi.QualifiedName, asked *resourceapi.CapacityRequirements) resource.Quantity {
	capacity := d.Capacity[name]
	policy := capacity.RequestPolicy
	want, ok := resource.Quantity{}, false
	if asked != nil {
		want, ok = asked.Requests[name]
	}
	switch {
	case !ok && policy != nil && policy.Default != nil:
		return policy.Default.DeepCopy()
	case !ok:
		return capacity.Value.DeepCopy()
	case policy == nil:
		return want.DeepCopy()
	case policy.ValidRange != nil && policy.ValidRange.Min != nil:
		return roundUp(want.DeepCopy(), *policy.ValidRange)
	}
	for _, value := range policy.ValidValues {
		if want.Cmp(value) <= 0 {
			return value.DeepCopy()
		}
	}
	return want.DeepCopy()
}

func roundUp(want resource.Quantity, valid resourceapi.CapacityRequestPolicyRange) resource.Quantity {
	if want.Cmp(*valid.Min) < 0 {
		return valid.Min.DeepCopy()
	}
	if valid.Step == nil || valid.Step.Value() <= 0 {
		return want
	}
	step, least := valid.Step.Value(), valid.Min.Value()
	if remainder := (want.Value() - least) % step; remainder != 0 {
		return *resource.NewQuantity(want.Value()-remainder+step, valid.Step.Format)
	}
	return want
}

// Squeeze is a capacity with less left than a request takes.
type Squeeze struct {
	Capacity        resourceapi.QualifiedName
	Takes, Left, Of resource.Quantity
}

// Crowded returns the first capacity that keeps a request from a share of the device. It is nil if all
// suffice, or if the device is not shared.
func (s *Stock) Crowded(d *Device, asked *resourceapi.CapacityRequirements) *Squeeze {
	if !d.Shared() {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(d.Capacity)) {
		of := d.Capacity[name].Value
		left := of.DeepCopy()
		left.Sub(s.used[d.ID].Consumed[name])
		if takes := d.Consumes(name, asked); takes.Cmp(left) > 0 {
			return &Squeeze{Capacity: name, Takes: takes, Left: left, Of: of}
		}
	}
	return nil
}
