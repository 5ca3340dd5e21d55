package pair

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// taken are the devices that claims have, by pool.
type taken map[devices.PoolID]sets.Set[string]

func takenBy(claims []*resourceapi.ResourceClaim) taken {
	all := taken{}
	for _, claim := range claims {
		for result := range devices.Results(claim.Status.Allocation) {
			pool := devices.PoolID{Driver: result.Driver, Name: result.Pool}
			if all[pool] == nil {
				all[pool] = sets.New[string]()
			}
			all[pool].Insert(result.Device)
		}
	}
	return all
}

// any tells whether a claim has a device of the node.
func (t taken) any(node *view.NodeState) bool {
	for _, slice := range node.Slices {
		if t[devices.PoolOf(slice)] != nil {
			return true
		}
	}
	return false
}

// busy tells a node more than half of whose GPUs are in use, which Cluster Autoscaler may take
// for one to be emptied. It empties nodes at half use or less (--scale-down-utilization-threshold),
// and measures a pool with counters by the highest ratio of each counter set
// (calculatePartitionableDevicesPoolUtilization, pkg/simulator/dynamicresources/utils/utilization.go).
// A GPU that is used whole leaves room in every counter for claims with admin access to look at it
// (kubernetes/kubernetes#140729), so that no ratio of a node that is all in use can be over a half.
func (t taken) busy(node *view.NodeState) bool {
	all, used, counters := 0, sets.New[string](), false
	for _, slice := range node.Slices {
		all += len(slice.Spec.SharedCounters)
		counters = counters || len(slice.Spec.SharedCounters) > 0
		pool := devices.PoolOf(slice)
		names := t[pool]
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			if len(device.ConsumesCounters) == 0 {
				all++ // it is offered in no other way
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
