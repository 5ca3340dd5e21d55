package devices

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestRequestsConsumeWhatThePolicySays(t *testing.T) {
	quantity := func(s string) *resource.Quantity { return ptr.To(resource.MustParse(s)) }
	steps := &resourceapi.CapacityRequestPolicy{
		Default:    quantity("10Gi"),
		ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1Gi"), Step: quantity("2Gi"), Max: quantity("40Gi")},
	}
	least := &resourceapi.CapacityRequestPolicy{ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity("1Gi")}}
	values := &resourceapi.CapacityRequestPolicy{ValidValues: []resource.Quantity{*quantity("1Gi"), *quantity("4Gi")}}
	for _, tc := range []struct {
		policy      *resourceapi.CapacityRequestPolicy
		asked, want string
	}{
		{nil, "", "40Gi"}, {nil, "3Gi", "3Gi"},
		{steps, "", "10Gi"}, {steps, "1Mi", "1Gi"}, {steps, "1Gi", "1Gi"}, {steps, "1025Mi", "3Gi"}, {steps, "5Gi", "5Gi"},
		{least, "", "40Gi"}, {least, "1Mi", "1Gi"}, {least, "1025Mi", "1025Mi"},
		{values, "1Mi", "1Gi"}, {values, "2Gi", "4Gi"}, {values, "5Gi", "5Gi"},
	} {
		d := &Device{Device: &resourceapi.Device{Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			"memory": {Value: resource.MustParse("40Gi"), RequestPolicy: tc.policy},
		}}}
		var asked *resourceapi.CapacityRequirements
		if tc.asked != "" {
			asked = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(tc.asked)}}
		}
		if got := d.Consumes("memory", asked); got.String() != tc.want {
			t.Errorf("of policy %v, a request for %q consumes %s, want %s", tc.policy, tc.asked, got.String(), tc.want)
		}
	}
}
