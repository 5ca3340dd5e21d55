//go:build conformance

package conformance

import (
	"fmt"
	"testing"
)

// TestDriverRuntimeManagement is of KAR-0001: the versions that the ResourceSlices have are those that are installed, as a
// pod finds them whose image has nothing of NVIDIA's. There is a pod for each combination of versions in the cluster.
func TestDriverRuntimeManagement(t *testing.T) {
	s := requires(t, "driver_runtime_management")
	s.begin()
	s.createTemplate("one", 1, 1)
	nodes := map[gpu]string{}
	for node, gpus := range s.gpus {
		for _, g := range gpus {
			nodes[gpu{driver: g.driver, cuda: g.cuda}] = node
		}
	}
	for versions, node := range nodes {
		s.sub(fmt.Sprintf("Driver%sCUDA%s", versions.driver, versions.cuda), func(s *scenario) {
			spec := s.podSpec("one", container{"main", requestOf(0)})
			spec.Affinity = onNodesNamed(node)
			name := "on-" + node
			s.createPod(name, spec)
			pod := s.awaitRunning(name, startTimeout)
			seen, published := s.sightOf(pod, "main"), s.allocated(pod)[requestOf(0)]
			s.expectSight(seen, published.uuid)
			if !sameVersion(published.driver, seen.driver) {
				s.Errorf("the slice of node %s has the driverVersion %q, nvidia-smi says %q", node, published.driver, seen.driver)
			}
			if !sameVersion(published.cuda, seen.cuda) {
				s.Errorf("the slice of node %s has the cudaDriverVersion %q, nvidia-smi says %q", node, published.cuda, seen.cuda)
			}
			// A runtime that hides /proc/driver from containers is no fault.
			if seen.module != "" && seen.module != seen.driver {
				s.Errorf("node %s has the kernel module %s and the libraries of %s: reboot it, or reload the module", node, seen.module, seen.driver)
			}
		})
	}
}
