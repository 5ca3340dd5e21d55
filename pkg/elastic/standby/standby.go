// Package standby opens the readiness gate mica.gpu/serving of loaded pods when there is work for
// them, and writes to the conditions of the others why it is closed. A loaded pod with a closed gate
// is in no EndpointSlice, and serves within a second once the gate opens. The package never closes a
// gate, and changes nothing else of a pod.
package standby

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// choose divides standbys into those to open, so that want pods serve, and those that wait. Pods on
// leaving nodes do not count as serving, so that a drain blocked by a PodDisruptionBudget continues
// once another pod serves.
func choose(pods []workload.Pod, want int, leaving func(node string) bool) (open, wait []workload.Pod) {
	serving := 0
	var standbys, last []workload.Pod
	for _, pod := range pods {
		switch {
		case pod.Gate == workload.Standby && leaving(pod.Node):
			last = append(last, pod)
		case pod.Gate == workload.Standby:
			standbys = append(standbys, pod)
		case pod.Gate == workload.Open && !leaving(pod.Node):
			serving++
		}
	}
	standbys = append(standbys, last...)
	// A rollout waits for Ready pods, and standbys never are.
	if slices.ContainsFunc(pods, func(pod workload.Pod) bool { return pod.Revision != pods[0].Revision }) {
		return standbys, nil
	}
	n := min(max(want-serving, 0), len(standbys))
	return standbys[:n], standbys[n:]
}
