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
)

const reasonPrepareFailed = "FailedPrepareDynamicResources"

func TestConfigurationWithoutSharingIsAccepted(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("configured", configured(s.claimFor(1), s.driver, `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig"}`))
	s.createPod(s.podFromTemplate("pod", "configured"))
	expectCount(t, s.expectOwnDevices("pod"), 1)
}

func TestConfigurationOfAnotherDriverIsNoneOfOurs(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("configured", configured(s.claimFor(1), "nic.example.com", `{"apiVersion":"nic.example.com/v1","kind":"Whatever","mtu":9000}`))
	s.createPod(s.podFromTemplate("pod", "configured"))
	expectCount(t, s.expectOwnDevices("pod"), 1)
}

// TestBadConfigurationIsRefusedWhereItIsWritten tries each kind of object that can hold a
// configuration, and expects a sentence with the field. Nothing is created.
func TestBadConfigurationIsRefusedWhereItIsWritten(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, parameters, want string
	}{
		{
			name:       "unknown version",
			parameters: `{"apiVersion":"resource.nvidia.com/v9","kind":"GpuConfig"}`,
			want:       `has the apiVersion "resource.nvidia.com/v9": the driver understands resource.nvidia.com/v1beta1`,
		},
		{
			name:       "unknown kind",
			parameters: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfiguration"}`,
			want:       `has the kind "GpuConfiguration"`,
		},
		{
			name:       "unknown field",
			parameters: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","shareing":{"strategy":"TimeSlicing"}}`,
			want:       `has the field shareing, which its kind does not have`,
		},
		{
			name:       "unknown interval",
			parameters: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Longest"}}}`,
			want:       `is "Longest": choose Default, Short, Medium or Long`,
		},
		{
			name:       "a percentage that is too large",
			parameters: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultActiveThreadPercentage":120}}}`,
			want:       `is 120: choose a whole number from 0, which is no limit, to 100`,
		},
		{
			name:       "a limit that is no quantity",
			parameters: `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"10GB"}}}`,
			want:       `is 10GB: choose a quantity of at least 1Mi`,
		},
	}
	s := newScenario(t, 0)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			spec := configured(s.claimFor(1), s.driver, test.parameters)
			for _, err := range s.tryClaim(spec) {
				expectInvalid(t, err, test.want)
			}
			_, err := s.client.ResourceV1().DeviceClasses().Create(t.Context(), &resourcev1.DeviceClass{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-"},
				Spec: resourcev1.DeviceClassSpec{Config: []resourcev1.DeviceClassConfiguration{
					{DeviceConfiguration: spec.Devices.Config[0].DeviceConfiguration},
				}},
			}, metav1.CreateOptions{DryRun: dryRun})
			expectInvalid(t, err, test.want)
		})
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

// TestConfigurationThatFitsNoDeviceIsRefusedWhereItIsWritten asks for devices by the chart's classes, of which the API
// server knows what configurations are for them.
func TestConfigurationThatFitsNoDeviceIsRefusedWhereItIsWritten(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	byTurns := `{"strategy":"TimeSlicing"}`
	ofClass := func(name, class string) resourcev1.DeviceRequest {
		request := s.sharesFor(class, 1, nil).Devices.Requests[0]
		request.Name = name
		return request
	}
	either := resourcev1.DeviceRequest{Name: "either", FirstAvailable: []resourcev1.DeviceSubRequest{
		{Name: "part", DeviceClassName: partitionClass}, {Name: "whole", DeviceClassName: s.driver},
	}}
	for _, test := range []struct {
		name, configured string // a request or one of its alternatives
		parameters       string
		want             string // "" is accepted
	}{
		{"of its kind", "whole", gpuConfig(byTurns), ""},
		{"of another kind", "part", gpuConfig(byTurns), `names the request "part", which asks for mig.nvidia.com: make it a MigDeviceConfig`},
		{"of another driver's kind", "whole", `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"VfioDeviceConfig"}`, `names the request "whole", which asks for gpu.nvidia.com: make it a GpuConfig`},
		{"of one alternative's kind", "either", gpuConfig(byTurns), ""},
		{"of the other alternative's kind", "either/part", gpuConfig(byTurns), ""},
		{"shares of a share", "share", gpuConfig(byTurns), `sharing is set for the request "share", which asks for shares, timeslice.nvidia.com`},
		{"a share as it is", "share", gpuConfig("null"), ""},
		{"MPS where it runs", "whole", gpuConfig(`{"strategy":"MPS"}`), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			spec := configured(s.claimFor(1), s.driver, test.parameters)
			spec.Devices.Requests = []resourcev1.DeviceRequest{ofClass("whole", s.driver), ofClass("part", partitionClass), ofClass("share", timeSliceClass), either}
			spec.Devices.Config[0].Requests = []string{test.configured}
			for _, err := range s.tryClaim(spec) {
				if test.want == "" {
					must(t, err, "create the claim")
					continue
				}
				expectInvalid(t, err, test.want)
			}
		})
	}
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

// events returns the messages of the pod's warnings with the reason, without those of which
// no driver knows.
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
