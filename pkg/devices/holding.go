package devices

import (
	"iter"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Holding is a device, or a share of one, in the allocation of a claim.
type Holding struct {
	// ID names the device.
	ID
	// Request is the request of the claim that the device was allocated for.
	Request string
	// ShareID identifies a share of a device. It is nil if the claim holds the whole device.
	ShareID *types.UID
	// ConsumedCapacity is what a share takes of each capacity of the device. It is never changed.
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity
	// Admin reports admin access: the claim takes nothing of the device.
	Admin bool
}

// local returns a name without the domain of the device's driver, and whether it has that domain.
func (h Holding) local(name resourceapi.QualifiedName) (resourceapi.QualifiedName, bool) {
	domain, local, qualified := strings.Cut(string(name), "/")
	return resourceapi.QualifiedName(local), qualified && domain == h.Pool.Driver
}

// Holdings yields the holdings of an allocation that take something: all but those with admin
// access. A nil allocation has none.
func Holdings(allocation *resourceapi.AllocationResult) iter.Seq[Holding] {
	return func(yield func(Holding) bool) {
		for h := range HoldingsWithAdmin(allocation) {
			if !h.Admin && !yield(h) {
				return
			}
		}
	}
}

// HoldingsWithAdmin yields all holdings of an allocation. A nil allocation has none.
func HoldingsWithAdmin(allocation *resourceapi.AllocationResult) iter.Seq[Holding] {
	return func(yield func(Holding) bool) {
		if allocation == nil {
			return
		}
		for i := range allocation.Devices.Results {
			result := &allocation.Devices.Results[i]
			if !yield(Holding{
				ID:      ID{Pool: PoolID{Driver: result.Driver, Name: result.Pool}, Name: result.Device},
				Request: result.Request, ShareID: result.ShareID, ConsumedCapacity: result.ConsumedCapacity,
				Admin: ptr.Deref(result.AdminAccess, false),
			}) {
				return
			}
		}
	}
}
