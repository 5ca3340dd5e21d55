// Package standby opens the readiness gate mica.gpu/serving of loaded pods when there is work for
// them, and says on the others why it is closed. Until then a loaded pod is in no Endpoints: it
// waits, and serves within a second. The package never closes a gate, and changes nothing else of
// a pod.
package standby

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// choose gives the standbys that are to serve for want pods to serve, and those that go on
// waiting. Pods on nodes that are leaving do not count as serving: a drain that a
// PodDisruptionBudget holds up goes on once another pod serves.
func choose(pods []workload.Pod, want int, leaving func(node string) bool) (open, wait []workload.Pod) {
	serving := 0
	var standbys []workload.Pod
	for _, pod := range pods {
		switch {
		case pod.Gate == workload.Standby:
			standbys = append(standbys, pod)
		case pod.Gate == workload.Open && !leaving(pod.Node):
			serving++
		}
	}
	// A roll-out waits for pods that are Ready, and standbys never are.
	if rollsOut(pods) {
		return standbys, nil
	}
	slices.SortStableFunc(standbys, func(a, b workload.Pod) int { return order(leaving(a.Node)) - order(leaving(b.Node)) })
	n := min(max(want-serving, 0), len(standbys))
	return standbys[:n], standbys[n:]
}

// rollsOut tells that there are pods of several revisions.
func rollsOut(pods []workload.Pod) bool {
	return slices.ContainsFunc(pods, func(pod workload.Pod) bool { return pod.Revision != pods[0].Revision })
}

func order(last bool) int {
	if last {
		return 1
	}
	return 0
}
