//go:build e2e

package e2e

import "testing"

// TestPatternsOfNVIDIAsDriver applies what users of NVIDIA's DRA driver write, by the patterns of
// its documentation: a GPU for each of two pods, one for the containers of a pod, one for two pods,
// one for each container, and an extended resource. TestManifestOfNVIDIAsDriver has MIG, and
// TestSharingManifestsOfNVIDIAsDriver time-slices and MPS.
func TestPatternsOfNVIDIAsDriver(t *testing.T) {
	for _, test := range []struct {
		pattern string
		gpus    int
		check   func(*testing.T, *scenario)
	}{
		{"two-pods", 2, func(t *testing.T, s *scenario) {
			first, second := s.expectOwnDevices("pod1"), s.expectOwnDevices("pod2")
			expectCount(t, first, 1)
			expectCount(t, second, 1)
			s.expectDistinct(map[string][]device{"pod1": first, "pod2": second})
		}},
		{"two-containers", 1, func(t *testing.T, s *scenario) {
			expectCount(t, s.expectOwnDevices("pod"), 1)
		}},
		{"shared-claim", 1, func(t *testing.T, s *scenario) {
			first, second := s.expectOwnDevices("pod1"), s.expectOwnDevices("pod2")
			expectCount(t, first, 1)
			if first[0].uuid != second[0].uuid {
				t.Errorf("the pods see %s and %s", first[0].uuid, second[0].uuid)
			}
		}},
		{"by-containers", 2, func(_ *testing.T, s *scenario) {
			pod := s.waitRunning("pod")
			claim, devices := s.claimOf(pod), map[string][]device{}
			for _, container := range pod.Spec.Containers {
				devices[container.Name] = s.allocatedTo(claim, container.Name)
				s.expectSight(pod, container.Name, devices[container.Name])
			}
			s.expectDistinct(devices)
		}},
		{"extended-resource", 2, func(t *testing.T, s *scenario) {
			expectCount(t, s.expectOwnDevices("pod"), 2)
		}},
	} {
		t.Run(test.pattern, func(t *testing.T) {
			t.Parallel()
			s := newScenario(t, test.gpus)
			s.applyManifest("testdata/nvidia-" + test.pattern + ".yaml")
			test.check(t, s)
		})
	}
}
