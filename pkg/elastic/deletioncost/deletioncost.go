// Package deletioncost says of a workload's replicas which goes first: standbys, then who has least
// to do, then who leaves a node empty. It writes the annotation by which a ReplicaSet chooses,
// rarely, and nothing else of a pod.
package deletioncost

import (
	"cmp"
	"math"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// replica is what is known of a pod.
type replica struct {
	pod workload.Pod
	// load is the part of the time in which its devices work, 0 to 1.
	load float64
	// neighbors are the other pods on its node that hold devices.
	neighbors int
	// written is the cost that the pod has; the API takes none for 0.
	written int
}

const (
	// ofStandby is below every cost of a pod that serves.
	ofStandby = -1000
	// levels are those of load that are told apart: a finer cost would change all the time.
	levels = 4
	// ofLevel is more than all neighbors count.
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

// outdated are the replicas whose written costs have to change for the right one to go first.
// It is none where they are in the right order already.
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
