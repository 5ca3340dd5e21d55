//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// gpuConfig is NVIDIA's configuration of whole GPUs with this sharing.
func gpuConfig(sharing string) string {
	return `{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":` + sharing + `}`
}

// TestSharingManifestsOfNVIDIAsDriver applies manifests that were written for NVIDIA's driver:
// containers of one pod share a GPU in time-slices and another under MPS, and two pods share a
// partition under MPS.
func TestSharingManifestsOfNVIDIAsDriver(t *testing.T) {
	s, sim := newPartitionScenario(t, len(under.devices))
	s.needProfiles("1g.10gb")
	s.applyManifest("testdata/nvidia-sharing.yaml")
	pod := s.waitRunning("four-containers")
	claim := s.claimOf(pod)
	sliced, served := s.allocatedTo(claim, "ts-gpu"), s.allocatedTo(claim, "mps-gpu")
	for _, container := range []string{"ts-ctr0", "ts-ctr1"} {
		s.expectSight(pod, container, sliced)
	}
	for _, container := range []string{"mps-ctr0", "mps-ctr1"} {
		s.expectLimitsIn(pod.Name, container, amounts{"memory": "5Gi", "cores": "50"})
	}
	if got := sim.gpu(sliced[0]); got.Timeslice != "Long" || got.ComputeMode != defaultMode {
		t.Errorf("the time-sliced GPU has the time-slice %s and the compute mode %s", got.Timeslice, got.ComputeMode)
	}
	if got := sim.gpu(served[0]); got.Timeslice != defaultSlice || got.ComputeMode != exclusiveProcess {
		t.Errorf("the GPU under MPS has the time-slice %s and the compute mode %s", got.Timeslice, got.ComputeMode)
	}
	for _, name := range []string{"first-of-partition", "second-of-partition"} {
		s.expectLimitsIn(name, "mps-ctr", amounts{"memory": "2Gi", "cores": "25"})
	}
	s.deletePod("first-of-partition")
	s.expectConnected("second-of-partition")
	eventually(t, goneTimeout, "the pods are gone", s.deletePods)
	s.expectUnshared()
	s.expectUnpartitioned()
}

// expectRefusal waits for the pod's Event with these words about why its claim is not prepared.
func (s *scenario) expectRefusal(pod string, want []string) {
	s.Helper()
	message := s.waitForEvent(pod, reasonPrepareFailed)
	for _, text := range want {
		if !strings.Contains(message, text) {
			s.Errorf("the event says:\n%s\nwhich lacks: %s", message, text)
		}
	}
}
