package template

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

// attributeText formats a value of any type.
func attributeText(a resourceapi.DeviceAttribute) string {
	switch {
	case a.StringValue != nil:
		return *a.StringValue
	case a.VersionValue != nil:
		return *a.VersionValue
	case a.IntValue != nil:
		return strconv.FormatInt(*a.IntValue, 10)
	case a.BoolValue != nil:
		return strconv.FormatBool(*a.BoolValue)
	case a.StringValues != nil || a.IntValues != nil || a.BoolValues != nil || a.VersionValues != nil:
		return fmt.Sprint(a.StringValues, a.IntValues, a.BoolValues, a.VersionValues)
	}
	return ""
}

func capacityText(all map[resourceapi.QualifiedName]resourceapi.DeviceCapacity, name resourceapi.QualifiedName) string {
	capacity, has := all[name]
	if !has {
		return ""
	}
	text := capacity.Value.String()
	if p := capacity.RequestPolicy; p != nil && p.Default != nil {
		text += " by " + p.Default.String()
	}
	return text
}

func claimsText(d resourceapi.Device) string {
	if ptr.Deref(d.AllowMultipleAllocations, false) {
		return "several"
	}
	return "one"
}

func consumptionText(d resourceapi.Device) string {
	var sets []string
	for _, c := range d.ConsumesCounters {
		sets = append(sets, counterText(c.Counters))
	}
	return strings.Join(sets, "; ")
}

func counterText(counters map[string]resourceapi.Counter) string {
	names := slices.Sorted(maps.Keys(counters))
	for i, name := range names {
		value := counters[name].Value
		names[i] = name + " " + value.String()
	}
	return strings.Join(names, ", ")
}

// lessAllocatable says which resource the node has less of. Memory and storage differ a little between machines of one
// instance type: a hundredth does not count.
func lessAllocatable(expected, node *corev1.Node) string {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
		want, known := expected.Status.Allocatable[name]
		if !known {
			continue
		}
		has := node.Status.Allocatable[name]
		least := want.MilliValue()
		if name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
			least -= least / 100
		}
		if has.MilliValue() < least {
			return fmt.Sprintf("has %s %s for pods, and %s was expected", name, has.String(), want.String())
		}
	}
	return ""
}
