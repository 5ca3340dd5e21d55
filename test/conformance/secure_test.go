//go:build conformance

package conformance

import "testing"

// TestSecureAcceleratorAccess is of KAR-0049: access is mediated by the claim, and containers without one, or with one for
// other GPUs, neither see nor list a GPU.
func TestSecureAcceleratorAccess(t *testing.T) {
	s := requires(t, "secure_accelerator_access")
	s.begin()
	s.createTemplate("one", 1, 1)
	all, onOne := s.most()

	s.createPod("claimed", s.podSpec("one", container{"main", requestOf(0)}, container{"sibling", ""}))
	claimed := s.awaitRunning("claimed", startTimeout)
	own := s.allocated(claimed)[requestOf(0)]
	s.sub("ClaimedContainer", func(s *scenario) {
		s.expectSight(s.sightOf(claimed, "main"), own.uuid)
	})
	s.sub("SiblingWithoutClaim", func(s *scenario) {
		s.expectSight(s.sightOf(claimed, "sibling"))
	})
	s.sub("PodWithoutClaim", func(s *scenario) {
		spec := s.podSpec("", container{"main", ""})
		spec.Affinity = onNodesNamed(claimed.Spec.NodeName)
		s.createPod("unclaimed", spec)
		s.expectSight(s.sightOf(s.awaitRunning("unclaimed", startTimeout), "main"))
	})
	s.sub("TwoPods", func(s *scenario) {
		if all < 2 {
			s.skip("that a pod does not see another pod's GPU needs two GPUs: add a node")
		}
		s.createPod("other", s.podSpec("one", container{"main", requestOf(0)}))
		pod := s.awaitRunning("other", startTimeout)
		other := s.allocated(pod)[requestOf(0)]
		if other.uuid == own.uuid {
			s.Errorf("pods claimed and other both have %s", own.uuid)
		}
		s.expectSight(s.sightOf(pod, "main"), other.uuid)
		s.deletePods("other")
	})
	s.deletePods("claimed", "unclaimed")
	s.sub("TwoContainers", func(s *scenario) {
		if onOne < 2 {
			s.Log("no node has two GPUs, so that there is nothing to keep apart within a pod")
			return
		}
		s.createTemplate("two", 2, 1)
		s.createPod("two", s.podSpec("two", container{"first", requestOf(0)}, container{"second", requestOf(1)}))
		pod := s.awaitRunning("two", startTimeout)
		gpus := s.allocated(pod)
		s.expectSight(s.sightOf(pod, "first"), gpus[requestOf(0)].uuid)
		s.expectSight(s.sightOf(pod, "second"), gpus[requestOf(1)].uuid)
	})
}

func (s *scenario) expectSight(seen sight, uuids ...string) {
	s.Helper()
	if err := seen.expect(uuids...); err != nil {
		s.Error(err)
	}
}
