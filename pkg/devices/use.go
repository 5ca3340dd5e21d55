package devices

import (
	"iter"
	"maps"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// Results are those of an allocation, which may be nil, that take a device or a share of one:
// with admin access nothing is taken.
func Results(allocation *resourceapi.AllocationResult) iter.Seq[*resourceapi.DeviceRequestAllocationResult] {
	return func(yield func(*resourceapi.DeviceRequestAllocationResult) bool) {
		if allocation == nil {
			return
		}
		results := allocation.Devices.Results
		for i := range results {
			if !takesNothing(&results[i]) && !yield(&results[i]) {
				return
			}
		}
	}
}

func takesNothing(result *resourceapi.DeviceRequestAllocationResult) bool {
	return ptr.Deref(result.AdminAccess, false)
}

// Use is what is taken of devices, as the scheduler counts it. Nothing is taken of those that
// are not in it.
type Use map[ID]Taken

// Taken is what is taken of a device.
type Taken struct {
	// Whole tells that one claim has all of it, Shared that claims have shares.
	Whole, Shared bool
	// Consumed is what the shares have of its capacities together. It is never changed.
	Consumed map[resourceapi.QualifiedName]resource.Quantity
}

// Add counts a result of an allocation for the device.
func (u Use) Add(id ID, result *resourceapi.DeviceRequestAllocationResult) {
	switch {
	case takesNothing(result):
	case result.ShareID == nil:
		u.takeWhole(id)
	default:
		u.takeShare(id, result.ConsumedCapacity)
	}
}

func (u Use) takeWhole(id ID) {
	taken := u[id]
	taken.Whole = true
	u[id] = taken
}

func (u Use) takeShare(id ID, consumes map[resourceapi.QualifiedName]resource.Quantity) {
	taken := u[id]
	taken.Shared = true
	if consumes != nil {
		consumed := make(map[resourceapi.QualifiedName]resource.Quantity, len(consumes))
		maps.Copy(consumed, taken.Consumed)
		for name, quantity := range consumes {
			sum := quantity.DeepCopy()
			sum.Add(consumed[name])
			consumed[name] = sum
		}
		taken.Consumed = consumed
	}
	u[id] = taken
}

// Clone can be added to without a change to this one.
func (u Use) Clone() Use { return maps.Clone(u) }

// State is the use as the scheduler's allocator wants it. A device in shares has one,
// SharesOf it, whatever their number: only what they consume together counts.
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

// SharesOf stands for the shares of a device: the allocator only asks whether there are any.
func SharesOf(device structured.DeviceID) structured.SharedDeviceID {
	return structured.MakeSharedDeviceID(device, &anyShare)
}
