package devices

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// Repels returns the first taint that keeps new claims with these tolerations away; nil: there is none.
func (d *Device) Repels(tolerations []resourceapi.DeviceToleration) *resourceapi.DeviceTaint {
	for i, taint := range d.Taints {
		if taint.Effect != resourceapi.DeviceTaintEffectNoSchedule && taint.Effect != resourceapi.DeviceTaintEffectNoExecute {
			continue
		}
		tolerated := slices.ContainsFunc(tolerations, func(t resourceapi.DeviceToleration) bool {
			return resourceclaim.ToleratesTaint(t, taint)
		})
		if !tolerated {
			return &d.Taints[i]
		}
	}
	return nil
}

// WithTaintRules adds the taints of DeviceTaintRules to slices, like the scheduler. A slice that no rule
// changes is the same pointer.
func WithTaintRules(published []*resourceapi.ResourceSlice, rules []resourceapi.DeviceTaintRule) []*resourceapi.ResourceSlice {
	if len(rules) == 0 {
		return published
	}
	out := make([]*resourceapi.ResourceSlice, len(published))
	for i, slice := range published {
		out[i] = withRules(slice, rules)
	}
	return out
}

func withRules(slice *resourceapi.ResourceSlice, rules []resourceapi.DeviceTaintRule) *resourceapi.ResourceSlice {
	tainted := slice
	for i := range rules {
		if !RuleReaches(&rules[i], PoolOf(slice)) {
			continue
		}
		for d := range slice.Spec.Devices {
			if !selects(rules[i].Spec.DeviceSelector.Device, slice.Spec.Devices[d].Name) {
				continue
			}
			if tainted == slice {
				// A shallow copy: the attributes stay shared.
				tainted = &resourceapi.ResourceSlice{ObjectMeta: slice.ObjectMeta, Spec: slice.Spec}
				tainted.Spec.Devices = slices.Clone(slice.Spec.Devices)
			}
			device := &tainted.Spec.Devices[d]
			device.Taints = append(slices.Clip(device.Taints), rules[i].Spec.Taint)
		}
	}
	return tainted
}

// RuleReaches reports whether a rule may taint devices of the pool.
func RuleReaches(rule *resourceapi.DeviceTaintRule, pool PoolID) bool {
	// A rule without a selector selects nothing.
	selector := rule.Spec.DeviceSelector
	return selector != nil && selects(selector.Driver, pool.Driver) && selects(selector.Pool, pool.Name)
}

// RuleTaints reports whether a rule taints the device.
func RuleTaints(rule *resourceapi.DeviceTaintRule, device ID) bool {
	return RuleReaches(rule, device.Pool) && selects(rule.Spec.DeviceSelector.Device, device.Name)
}

func selects(want *string, name string) bool { return want == nil || *want == name }
