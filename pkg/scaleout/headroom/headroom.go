// Package headroom computes how many devices a GPUHeadroom asks for at a time, and its status. It never
// plans: package scaleout plans headroom after all pods.
package headroom

import (
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Demand is a headroom's demand at a time, and when it may change next. Zero: never. The error is for the headroom's author.
func Demand(h *v1alpha1.GPUHeadroom, selectors *devices.Selectors, now time.Time) (scaleout.Headroom, time.Time, error) {
	wanted, next, err := Wanted(&h.Spec, now)
	if err != nil {
		return scaleout.Headroom{}, time.Time{}, err
	}
	claim, err := claimOf(&h.Spec, selectors)
	if err != nil {
		return scaleout.Headroom{}, time.Time{}, err
	}
	return scaleout.Headroom{
		Name:    h.Name,
		Claim:   claim,
		Devices: wanted,
		Groups:  slices.Clone(h.Spec.NodeGroups),
	}, next, nil
}

// claimOf is a claim for one device.
func claimOf(spec *v1alpha1.GPUHeadroomSpec, selectors *devices.Selectors) (resourceapi.ResourceClaimSpec, error) {
	request := resourceapi.ExactDeviceRequest{
		DeviceClassName: spec.DeviceClassName,
		AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
		Count:           1,
	}
	for i, s := range spec.Selectors {
		if err := selectors.Get(string(s)).Err; err != nil {
			return resourceapi.ResourceClaimSpec{}, fmt.Errorf("selector %d %w", i, err)
		}
		request.Selectors = append(request.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: string(s)}})
	}
	return resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "device", Exactly: &request}},
	}}, nil
}

// Status is the new status of a headroom that wants so many devices. It does not change the present status.
func Status(h *v1alpha1.GPUHeadroom, wanted int, d scaleout.HeadroomDecision, now time.Time) v1alpha1.GPUHeadroomStatus {
	condition := metav1.Condition{Status: metav1.ConditionFalse, Message: progress(wanted, d)}
	switch {
	case d.Free >= wanted:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonKept
	case d.Free+d.Coming+d.Demanded >= wanted:
		condition.Reason = v1alpha1.ReasonFilling
	default:
		condition.Reason = v1alpha1.ReasonCannotBeKept
		if d.Problem != "" {
			condition.Message += ": " + d.Problem
		}
	}
	status := withReady(h, condition, now)
	status.Wanted, status.Free, status.Demanded = int32(wanted), int32(d.Free), int32(d.Coming+d.Demanded)
	return status
}

// Invalid is the status of an invalid headroom. why is a sentence.
func Invalid(h *v1alpha1.GPUHeadroom, why string, now time.Time) v1alpha1.GPUHeadroomStatus {
	return withReady(h, metav1.Condition{
		Status:  metav1.ConditionFalse,
		Reason:  v1alpha1.ReasonInvalid,
		Message: why + "; nothing is kept until it is corrected",
	}, now)
}

// maxMessage is the API's limit.
const maxMessage = 32768

// withReady is a status without numbers. It keeps the time of an unchanged condition.
func withReady(h *v1alpha1.GPUHeadroom, c metav1.Condition, now time.Time) v1alpha1.GPUHeadroomStatus {
	status := v1alpha1.GPUHeadroomStatus{ObservedGeneration: h.Generation, Conditions: slices.Clone(h.Status.Conditions)}
	c.Type = v1alpha1.ConditionReady
	c.ObservedGeneration = h.Generation
	c.LastTransitionTime = metav1.NewTime(now)
	c.Message = excerpt.Of(c.Message, maxMessage)
	meta.SetStatusCondition(&status.Conditions, c)
	return status
}

func progress(wanted int, d scaleout.HeadroomDecision) string {
	text := fmt.Sprintf("%d of %d devices are free", d.Free, wanted)
	if d.Coming > 0 {
		text += fmt.Sprintf(", %d are on nodes that are starting or were asked for", d.Coming)
	}
	if d.Demanded > 0 {
		text += fmt.Sprintf(", %d need new nodes", d.Demanded)
	}
	return text
}

// Nodes are the live nodes that hold devices for any headroom.
func Nodes(decisions []scaleout.HeadroomDecision) map[string]bool {
	nodes := map[string]bool{}
	for _, d := range decisions {
		for _, node := range d.Nodes {
			nodes[node] = true
		}
	}
	return nodes
}
