//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const reasonPrepareFailed = "FailedPrepareDynamicResources"

// TestBadConfigurationIsRefusedWhereItIsWritten finds the chart's admission policies at work for each kind of object that can
// hold a configuration; deployments/helm tests what they refuse. Nothing is created.
func TestBadConfigurationIsRefusedWhereItIsWritten(t *testing.T) {
	t.Parallel()
	const want = "has the field shareing, which its kind does not have"
	s := newScenario(t, 0)
	spec := configured(s.claimFor(1), s.driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","shareing":{"strategy":"TimeSlicing"}}`)
	for _, err := range s.tryClaim(spec) {
		expectInvalid(t, err, want)
	}
	_, err := s.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-"},
		Spec: resourcev1.DeviceClassSpec{Config: []resourcev1.DeviceClassConfiguration{
			{DeviceConfiguration: spec.Devices.Config[0].DeviceConfiguration},
		}},
	}, metav1.CreateOptions{DryRun: dryRun})
	expectInvalid(t, err, want)

	misfit := configured(s.sharesFor(timeSliceClass, 1, nil), s.driver, gpuConfig(`{"strategy":"TimeSlicing"}`))
	for _, err := range s.tryClaim(misfit) {
		expectInvalid(t, err, "which asks for shares, timeslice.nvidia.com")
	}

	admin := s.claimFor(1)
	admin.Devices.Requests[0].Exactly.AdminAccess = ptr.To(true)
	for _, err := range s.tryClaim(admin) {
		expectInvalid(t, err, resourcev1.DRAAdminNamespaceLabelKey)
	}
}

// tryClaim is what the API server says of a claim and of a template of it. Nothing is created.
func (s *scenario) tryClaim(spec resourcev1.ResourceClaimSpec) (refusals [2]error) {
	resources, created, named := s.client.ResourceV1(), metav1.CreateOptions{DryRun: dryRun}, metav1.ObjectMeta{GenerateName: "mica-e2e-"}
	_, refusals[0] = resources.ResourceClaims(s.namespace).Create(s.Context(), &resourcev1.ResourceClaim{ObjectMeta: named, Spec: spec}, created)
	_, refusals[1] = resources.ResourceClaimTemplates(s.namespace).Create(s.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: named, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: spec},
	}, created)
	return refusals
}

// TestBadConfigurationFailsItsOwnPodOnly expects an event that says which claim, request
// and field are at fault, and that a neighbour's pod starts meanwhile. Only the node knows
// that the device that the claim was given has less memory.
func TestBadConfigurationFailsItsOwnPodOnly(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 2)
	s.createClaim("bad", configured(s.claimFor(1), s.driver, gpuConfig(`{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1Ti"}}`)))
	s.createPod(s.podSharing("bad", "bad"))
	s.createTemplate("good", s.claimFor(1))
	s.createPod(s.podFromTemplate("good", "good"))
	expectCount(t, s.expectOwnDevices("good"), 1)
	s.expectRefusal("bad", []string{"sharing.mpsConfig.defaultPinnedDeviceMemoryLimit is 1Ti", "lower it", s.namespace + "/bad", fmt.Sprintf("%q", requestName)})
	s.expectNoEvent("good", reasonPrepareFailed)
}

// waitForEvent returns the message of the pod's event with the reason.
func (s *scenario) waitForEvent(pod, reason string) string {
	s.Helper()
	var message string
	eventually(s, startTimeout, fmt.Sprintf("pod %s has the event %s", pod, reason), func(ctx context.Context) error {
		messages, err := s.events(ctx, pod, reason)
		if err != nil {
			return err
		}
		if len(messages) == 0 {
			return errors.Join(errors.New("it has none"), s.nudgeRefused(ctx))
		}
		message = messages[0]
		return nil
	})
	return message
}

func (s *scenario) expectNoEvent(pod, reason string) {
	s.Helper()
	messages, err := s.events(s.Context(), pod, reason)
	must(s, err, "read the events of pod %s", pod)
	if len(messages) > 0 {
		s.Errorf("pod %s has the event %s: %s", pod, reason, messages[0])
	}
}

// events returns the messages of the pod's warnings with the reason, without those of races
// that no driver notices.
func (s *scenario) events(ctx context.Context, pod, reason string) ([]string, error) {
	events, err := s.client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Pod,involvedObject.name=" + pod + ",reason=" + reason,
	})
	if err != nil {
		return nil, err
	}
	var messages []string
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && !isRace(&event) {
			messages = append(messages, event.Message)
		}
	}
	return messages, nil
}
