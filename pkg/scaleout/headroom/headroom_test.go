package headroom

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

var noon = time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)

func big(devices int32) *v1alpha1.GPUHeadroom {
	return &v1alpha1.GPUHeadroom{
		ObjectMeta: metav1.ObjectMeta{Name: "big", Generation: 3},
		Spec: v1alpha1.GPUHeadroomSpec{
			DeviceClassName: "gpu.mica.gpu",
			Selectors:       []v1alpha1.Selector{`device.attributes["gpu.mica.gpu"].type == "gpu"`},
			Devices:         devices,
			NodeGroups:      []string{"a"},
		},
	}
}

func TestDemandIsForOneDeviceAtATime(t *testing.T) {
	got, next, err := Demand(big(4), devices.NewSelectors(), noon)
	if err != nil {
		t.Fatal(err)
	}
	want := scaleout.Headroom{
		Name: "big", Devices: 4, Groups: []string{"a"},
		Claim: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{
			Name: "device",
			Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: "gpu.mica.gpu",
				AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
				Count:           1,
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
					Expression: `device.attributes["gpu.mica.gpu"].type == "gpu"`,
				}}},
			},
		}}}},
	}
	if diff := cmp.Diff(want, got); diff != "" || !next.IsZero() {
		t.Errorf("demand until %s (-want +got):\n%s", next, diff)
	}
}

func TestASelectorThatDoesNotCompileIsExplained(t *testing.T) {
	h := big(1)
	h.Spec.Selectors = append(h.Spec.Selectors, "device.memory >= 80Gi")
	if _, _, err := Demand(h, devices.NewSelectors(), noon); err == nil || !strings.HasPrefix(err.Error(), "selector 1 does not compile: ") {
		t.Errorf("the error is %v", err)
	}
	h = big(1)
	h.Spec.Schedule = []v1alpha1.Window{entry("soon", "1h", "", 1)}
	if _, _, err := Demand(h, devices.NewSelectors(), noon); err == nil || !strings.HasPrefix(err.Error(), "entry 0 of the schedule: ") {
		t.Errorf("the error is %v", err)
	}
}

func TestStatusCountsDevices(t *testing.T) {
	for name, test := range map[string]struct {
		decision scaleout.HeadroomDecision
		status   metav1.ConditionStatus
		reason   string
		message  string
		demanded int32
	}{
		"kept":      {scaleout.HeadroomDecision{Free: 4}, metav1.ConditionTrue, v1alpha1.ReasonKept, "4 of 4 devices are free", 0},
		"coming":    {scaleout.HeadroomDecision{Free: 1, Coming: 3}, metav1.ConditionFalse, v1alpha1.ReasonFilling, "1 of 4 devices are free, 3 are on nodes that are starting or were asked for", 3},
		"demanded":  {scaleout.HeadroomDecision{Coming: 1, Demanded: 3}, metav1.ConditionFalse, v1alpha1.ReasonFilling, "0 of 4 devices are free, 1 are on nodes that are starting or were asked for, 3 need new nodes", 4},
		"cannot be": {scaleout.HeadroomDecision{Free: 2, Problem: "group a is at max"}, metav1.ConditionFalse, v1alpha1.ReasonCannotBeKept, "2 of 4 devices are free: group a is at max", 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := big(4)
			got := Status(h, 4, test.decision, noon)
			want := v1alpha1.GPUHeadroomStatus{
				ObservedGeneration: 3, Wanted: 4, Free: int32(test.decision.Free), Demanded: test.demanded,
				Conditions: []metav1.Condition{{
					Type: v1alpha1.ConditionReady, Status: test.status, Reason: test.reason, Message: test.message,
					ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(noon),
				}},
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}
			if len(h.Status.Conditions) != 0 {
				t.Error("the present status was changed")
			}
		})
	}
}

func TestAConditionKeepsItsTime(t *testing.T) {
	h := big(4)
	h.Status = Status(h, 4, scaleout.HeadroomDecision{Free: 1, Problem: "x"}, noon)
	h.Status = Status(h, 4, scaleout.HeadroomDecision{Free: 2, Problem: "x"}, noon.Add(time.Minute))
	if got := h.Status.Conditions[0]; !got.LastTransitionTime.Time.Equal(noon) || got.Message != "2 of 4 devices are free: x" {
		t.Errorf("the condition is %+v", got)
	}
	h.Status = Invalid(h, "entry 0 of the schedule: no", noon.Add(2*time.Minute))
	got := h.Status.Conditions[0]
	if got.Reason != v1alpha1.ReasonInvalid || got.Message != "entry 0 of the schedule: no; nothing is kept until it is corrected" || h.Status.Wanted != 0 || h.Status.Free != 0 {
		t.Errorf("the status is %+v", h.Status)
	}
}

func TestNodesAreThoseOfAllHeadrooms(t *testing.T) {
	got := Nodes([]scaleout.HeadroomDecision{{Nodes: []string{"a", "b"}}, {}, {Nodes: []string{"b", "c"}}})
	if diff := cmp.Diff(map[string]bool{"a": true, "b": true, "c": true}, got); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
}
