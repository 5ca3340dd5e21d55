package view

import (
	resourceapi "k8s.io/api/resource/v1"
)

// withTaintRules gives the slices with the taints that DeviceTaintRules put on their devices,
// as the scheduler sees them. A slice that no rule changes is the same pointer.
func withTaintRules(slices []*resourceapi.ResourceSlice, rules []resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	if len(rules) == 0 {
		return slices
	}
	out := make([]*resourceapi.ResourceSlice, len(slices))
	for i, slice := range slices {
		out[i] = withRules(slice, rules)
	}
	return out
}

func withRules(slice *resourceapi.ResourceSlice, rules []resourceapi.DeviceTaintRule) *resourceapi.ResourceSlice {
	tainted := slice
	for i := range rules {
		// A rule without a selector selects nothing.
		selector := rules[i].Spec.DeviceSelector
		if selector == nil || !selects(selector.Driver, slice.Spec.Driver) || !selects(selector.Pool, slice.Spec.Pool.Name) {
			continue
		}
		for d := range slice.Spec.Devices {
			if !selects(selector.Device, slice.Spec.Devices[d].Name) {
				continue
			}
			if tainted == slice {
				tainted = slice.DeepCopy()
			}
			device := &tainted.Spec.Devices[d]
			device.Taints = append(device.Taints, rules[i].Spec.Taint)
		}
	}
	return tainted
}

func selects(want *string, name string) bool { return want == nil || *want == name }
