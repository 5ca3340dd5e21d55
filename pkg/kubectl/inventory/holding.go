package inventory

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// Holding is what a claim has of a device: little of a claim, of which a cluster has tens of
// thousands.
type Holding struct {
	Claim  types.NamespacedName
	Device devices.ID
	// result is the part of the allocation that it was read of.
	result resourceapi.DeviceRequestAllocationResult
	// Pods may use it, none while no pod does.
	Pods []string
}

// HoldingsOf are what a claim has of a driver's devices; none where it is not allocated.
func HoldingsOf(claim *resourceapi.ResourceClaim, driver string) []Holding {
	if claim.Status.Allocation == nil {
		return nil
	}
	var held []Holding
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != driver {
			continue
		}
		held = append(held, Holding{
			Claim: types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}, Device: devices.Of(&result),
			result: resourceapi.DeviceRequestAllocationResult{
				Request: result.Request, Driver: result.Driver, Pool: result.Pool, Device: result.Device,
				ShareID: result.ShareID, ConsumedCapacity: result.ConsumedCapacity, AdminAccess: result.AdminAccess,
			},
			Pods: podsOf(claim),
		})
	}
	return held
}

// podsOf are the pods that a claim is reserved for. Other things than pods could reserve a claim.
func podsOf(claim *resourceapi.ResourceClaim) []string {
	var pods []string
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, consumer.Name)
		}
	}
	return pods
}

// compare orders holdings by their claims.
func (h Holding) compare(other Holding) int {
	return cmp.Or(
		cmp.Compare(h.Claim.Namespace, other.Claim.Namespace), cmp.Compare(h.Claim.Name, other.Claim.Name),
		h.Device.Compare(other.Device), cmp.Compare(h.result.Request, other.result.Request),
		cmp.Compare(ptr.Deref(h.result.ShareID, ""), ptr.Deref(other.result.ShareID, "")),
	)
}

// Share tells that others may have parts of the device, too.
func (h Holding) Share() bool { return h.result.ShareID != nil }

// Takes tells that it takes something: one with admin access only looks.
func (h Holding) Takes() bool { return !ptr.Deref(h.result.AdminAccess, false) }

// consumed is what a share has of a capacity; 0 where it was not said.
func (h Holding) consumed(name string) int64 {
	quantity, _ := devices.Lookup(h.result.ConsumedCapacity, h.Device.Pool.Driver, h.Device.Pool.Driver, name)
	return quantity.Value()
}

func (h Holding) hold() Hold {
	return Hold{
		Namespace: h.Claim.Namespace, Claim: h.Claim.Name, Request: h.result.Request, Device: h.Device.Name,
		Share: string(ptr.Deref(h.result.ShareID, "")), MemoryBytes: h.consumed(gpu.CapacityMemory),
		Shares: h.consumed(gpu.CapacityShares), Cores: h.consumed(gpu.CapacityCores), Pods: h.Pods, Admin: !h.Takes(),
	}
}
