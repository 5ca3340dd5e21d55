// Package deletioncost decides which replica of a workload is deleted first: standbys, then idle
// replicas, then those whose node becomes empty. It writes the annotation
// controller.kubernetes.io/pod-deletion-cost, rarely, on pods that ask for it.
package deletioncost

import (
	"cmp"
	"math"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// replica is a pod with its load.
type replica struct {
	pod workload.Pod
	// load is the utilization of its devices, 0 to 1.
	load float64
	// neighbors counts other pods with devices on its node.
	neighbors int
	// written is the pod's present cost; unset means 0.
	written int
}

const (
	// ofStandby is below every cost of a serving pod.
	ofStandby = -1000
	// levels quantize load; a finer cost would change all the time.
	levels = 4
	// ofLevel exceeds the greatest number of neighbors.
	ofLevel       = 100
	mostNeighbors = ofLevel - 1
)

func (r replica) cost() int {
	neighbors := min(r.neighbors, mostNeighbors)
	if r.pod.Gate == workload.Standby {
		return ofStandby + neighbors
	}
	return int(math.Round(r.load*levels))*ofLevel + neighbors
}

// outdated lists the replicas whose costs must be written; none if the present costs give the right
// order.
func outdated(replicas []replica) []replica {
	sorted := slices.SortedStableFunc(slices.Values(replicas), func(a, b replica) int {
		return cmp.Or(cmp.Compare(a.cost(), b.cost()), cmp.Compare(a.written, b.written))
	})
	ordered := true
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].cost() < sorted[i].cost() && sorted[i-1].written >= sorted[i].written {
			ordered = false
		}
	}
	if ordered {
		return nil
	}
	return slices.DeleteFunc(sorted, func(r replica) bool { return r.cost() == r.written })
}
