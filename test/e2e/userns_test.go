//go:build e2e

package e2e

import (
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// The runtime binds the host's device nodes into a container with a user namespace. The
// simulated driver, like one in a container, has none there: docs/use/mig.md quotes the pod's
// Event. The claim is prepared all the same, and taken back with the pod.
func TestAUserNamespaceNeedsTheHostsDeviceNodes(t *testing.T) {
	t.Parallel()
	s, sim := newPartitionScenario(t, 1)
	s.createTemplate("one", s.partitionsFor(1, s.is("profile", s.smallest())))
	pod := s.podFromTemplate("pod", "one")
	pod.Spec.HostUsers = ptr.To(false)
	s.createPod(pod)
	if message := s.waitForEvent("pod", "Failed"); !strings.Contains(message, "/dev/nvidia") || !strings.Contains(message, "no such file or directory") {
		t.Errorf("the pod's Event is %q, want the device node that the host lacks", message)
	}
	now, err := s.pod(t.Context(), "pod")
	must(t, err, "read the pod")
	claim := s.claimOf(now)
	devices := s.allocated(claim)
	expectCount(t, devices, 1)
	made := s.inUse(claim, devices[0])
	s.deletePod("pod")
	sim.expectGone(made)
}
