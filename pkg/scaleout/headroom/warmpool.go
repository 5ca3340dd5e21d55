package headroom

import (
	"slices"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// Pool is a node group that has a warm pool.
type Pool struct {
	Group string
	// PerNode is how many devices of a headroom, by its name, an empty node has; 0 where its
	// devices are none, or that is not known.
	PerNode func(headroom string) int
}

// WarmPools are the sizes of pools, of those of which a headroom says anything. A pool has as
// many machines as it takes to keep the headroom once more, so that what is used up is filled
// again by machines that are started already. It goes by what is wanted and not by what is
// free at the moment: a node group has one update at a time, and one that changes its pool
// whenever a device is taken could not grow when it has to.
//
// Headrooms and demands are in the same order. Of several groups, the first is filled up to
// the headroom's bound, and then the next.
func WarmPools(headrooms []*v1alpha1.GPUHeadroom, demands []scaleout.Headroom, pools []Pool) map[string]int {
	sizes := map[string]int{}
	bounds := map[string]int{}
	for i, h := range headrooms {
		if h.Spec.WarmPool == nil || i >= len(demands) {
			continue
		}
		bound, left := int(h.Spec.WarmPool.Max), demands[i].Devices
		for _, pool := range pools {
			if len(demands[i].Groups) > 0 && !slices.Contains(demands[i].Groups, pool.Group) {
				continue
			}
			perNode := pool.PerNode(h.Name)
			if perNode == 0 {
				continue
			}
			machines := min((left+perNode-1)/perNode, bound)
			left = max(left-machines*perNode, 0)
			bounds[pool.Group] = max(bounds[pool.Group], bound)
			sizes[pool.Group] = min(sizes[pool.Group]+machines, bounds[pool.Group])
		}
	}
	return sizes
}
