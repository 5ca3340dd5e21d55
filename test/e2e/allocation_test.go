//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestOnePodGetsOneGPU(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("pod", "one"))
	if devices := s.expectOwnDevices("pod"); len(devices) != 1 {
		t.Errorf("the pod got %d GPUs, want 1", len(devices))
	}
}

func TestPodWithoutClaimSeesNoGPU(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	s.createPod(s.plainPod("pod"))
	pod := s.waitRunning("pod")
	s.expectSightOf(pod, "main", sight{})
}

func TestSeveralRequestsInOneClaim(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 2)
	spec := s.claimFor(1)
	second := *spec.Devices.Requests[0].DeepCopy()
	second.Name = "other"
	spec.Devices.Requests = append(spec.Devices.Requests, second)
	s.createTemplate("two-requests", spec)

	pod := s.podFromTemplate("pod", "two-requests")
	pod.Spec.Containers[0].Resources.Claims[0].Request = requestName
	other := s.container("other", "show")
	other.Resources.Claims = []corev1.ResourceClaim{{Name: claimName, Request: "other"}}
	pod.Spec.Containers = append(pod.Spec.Containers, other)
	s.createPod(pod)

	pod = s.waitRunning("pod")
	claim := s.claimOf(pod)
	s.expectSight(pod, "main", s.allocatedTo(claim, requestName))
	s.expectSight(pod, "other", s.allocatedTo(claim, "other"))
}
