//go:build e2e

package e2e

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestSharedClaimOutlivesItsFirstPod(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createClaim("shared", s.claimFor(1))
	evicted := s.podSharing("first", "shared")
	evicted.Labels = map[string]string{"budget": "none"}
	s.createPod(evicted)
	first := s.expectOwnDevices("first")
	s.createPod(s.podSharing("second", "shared"))
	second := s.expectOwnDevices("second")
	if first[0].uuid != second[0].uuid {
		t.Fatalf("the pods that share a claim see %s and %s", first[0].uuid, second[0].uuid)
	}
	running := s.waitRunning("second")
	s.drain("first", evicted.Labels)

	// The second pod keeps the GPU and its CDI file: another container can still start.
	s.createPod(s.podSharing("third", "shared"))
	if third := s.expectOwnDevices("third"); third[0].uuid != second[0].uuid {
		t.Errorf("after the first pod's end the claim moved from %s to %s", second[0].uuid, third[0].uuid)
	}
	if after := s.waitRunning("second"); containerRun(after) != containerRun(running) {
		t.Errorf("the second pod was disturbed by the first one's end: its container was %s, is %s", containerRun(running), containerRun(after))
	}
}

// TestContainersOfOnePodShareItsClaim also compares what kubelet reports of the claim: in the pod's status, to tools on the
// node, and in its metrics.
func TestContainersOfOnePodShareItsClaim(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	s.createTemplate("one", s.claimFor(1))
	pod := s.podFromTemplate("pod", "one")
	second := s.container("second", "show")
	second.Resources.Claims = []corev1.ResourceClaim{{Name: claimName}}
	initialise := s.container("initialise", "once")
	initialise.Resources.Claims = []corev1.ResourceClaim{{Name: claimName}}
	pod.Spec.InitContainers = []corev1.Container{initialise}
	pod.Spec.Containers = append(pod.Spec.Containers, second)
	s.createPod(pod)

	running := s.waitRunning("pod")
	devices := s.allocated(s.claimOf(running))
	for _, container := range []string{"initialise", "main", "second"} {
		s.expectSight(running, container, devices)
	}
	s.expectHealth("pod", "Healthy", "")
	s.expectKubeletMetrics()
	if under.local() {
		s.expectPodResources(running, devices, "main", "second")
	}
}
