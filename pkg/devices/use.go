package devices

import (
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// Use is the use of devices, as the scheduler counts it. Other devices are free.
type Use map[ID]Taken

// Taken is the used part of a device.
type Taken struct {
	// Whole reports that one claim holds the device, Shared that claims hold shares of it.
	Whole, Shared bool
	// Consumed is the sum of what the shares take of each capacity. It is never changed.
	Consumed map[resourceapi.QualifiedName]resource.Quantity
}

// Add counts a holding.
func (u Use) Add(h Holding) {
	if h.Admin {
		return
	}
	taken := u[h.ID]
	if h.ShareID == nil {
		taken.Whole = true
		u[h.ID] = taken
		return
	}
	taken.Shared = true
	if h.ConsumedCapacity != nil {
		consumed := make(map[resourceapi.QualifiedName]resource.Quantity, len(h.ConsumedCapacity))
		maps.Copy(consumed, taken.Consumed)
		add := func(name resourceapi.QualifiedName, quantity resource.Quantity) {
			sum := quantity.DeepCopy()
			sum.Add(consumed[name])
			consumed[name] = sum
		}
		for name, quantity := range h.ConsumedCapacity {
			add(name, quantity)
			// A driver that drops its domain from a slice's names leaves it in older allocations
			// (kubernetes/kubernetes#142202). The helper of Kubernetes 1.38 refuses the opposite.
			if local, own := h.local(name); own {
				add(local, quantity)
			}
		}
		taken.Consumed = consumed
	}
	u[h.ID] = taken
}

// Clone returns a copy that can be changed.
func (u Use) Clone() Use { return maps.Clone(u) }

// State converts the use for the scheduler's allocator. The shares of a device become one share, SharesOf,
// because only the sum of what they consume counts.
func (u Use) State() structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for id, taken := range u {
		device := structured.MakeDeviceID(id.Pool.Driver, id.Pool.Name, id.Name)
		if taken.Whole {
			state.AllocatedDevices.Insert(device)
		}
		if taken.Shared {
			state.AllocatedSharedDeviceIDs.Insert(SharesOf(device))
		}
		if taken.Consumed != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, taken.Consumed))
		}
	}
	return state
}

var anyShare = types.UID("taken")

// SharesOf represents all shares of a device. The allocator only asks whether there are any.
func SharesOf(device structured.DeviceID) structured.SharedDeviceID {
	return structured.MakeSharedDeviceID(device, &anyShare)
}
