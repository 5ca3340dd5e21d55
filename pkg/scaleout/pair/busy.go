package pair

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Taken has the allocated devices by pool.
type Taken map[devices.PoolID]sets.Set[string]

// TakenBy returns the devices of claims.
func TakenBy(claims []*resourceapi.ResourceClaim) Taken {
	all := Taken{}
	for _, claim := range claims {
		for held := range devices.Holdings(claim.Status.Allocation) {
			if all[held.Pool] == nil {
				all[held.Pool] = sets.New[string]()
			}
			all[held.Pool].Insert(held.Name)
		}
	}
	return all
}

// Any reports whether a claim has a device of the node.
func (t Taken) Any(node *view.NodeState) bool {
	for _, slice := range node.Slices {
		if t[devices.PoolOf(slice)] != nil {
			return true
		}
	}
	return false
}

// busy reports whether more than half of the node's GPUs are in use. Cluster Autoscaler may wrongly drain such a node: it
// drains at half use or less (--scale-down-utilization-threshold), and measures a pool with counters by the highest ratio of
// each counter set (calculatePartitionableDevicesPoolUtilization, pkg/simulator/dynamicresources/utils/utilization.go).
// Counters are double, for admin access (kubernetes/kubernetes#140729), so a full node has a ratio of a half.
func (t Taken) busy(node *view.NodeState) bool {
	all, used, counters := 0, sets.New[string](), false
	for _, slice := range node.Slices {
		all += len(slice.Spec.SharedCounters)
		counters = counters || len(slice.Spec.SharedCounters) > 0
		pool := devices.PoolOf(slice)
		names := t[pool]
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if len(device.ConsumesCounters) == 0 {
				all++ // a device without counters is a GPU
			}
			if !names.Has(device.Name) {
				continue
			}
			if len(device.ConsumesCounters) == 0 {
				used.Insert(pool.Name + "/" + device.Name)
			}
			for _, consumed := range device.ConsumesCounters {
				used.Insert(pool.Name + "/" + consumed.CounterSet)
			}
		}
	}
	return counters && 2*used.Len() > all
}
