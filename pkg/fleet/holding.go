package fleet

import (
	"cmp"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// Holding is a device, or a share of one, that a claim holds.
type Holding struct {
	Namespace string `json:"namespace"`
	Claim     string `json:"claim"`
	Request   string `json:"request"`
	Device    string `json:"device"`
	// Share identifies a share of a device; empty: the claim holds the whole device.
	Share string `json:"share,omitempty"`
	// MemoryBytes, Shares and Cores are the share's part of its device.
	MemoryBytes int64 `json:"memoryBytes,omitempty"`
	Shares      int64 `json:"shares,omitempty"`
	Cores       int64 `json:"cores,omitempty"`
	// Pods are those that the claim is reserved for.
	Pods []string `json:"pods,omitempty"`
	// Admin reports admin access: the claim takes nothing of the device.
	Admin bool `json:"admin,omitempty"`

	// of is the holding in the claim's allocation.
	of devices.Holding
}

// HoldingsOf lists what a claim holds of a driver's devices.
func HoldingsOf(claim *resourceapi.ResourceClaim, driver string) []Holding {
	var held []Holding
	for h := range devices.HoldingsWithAdmin(claim.Status.Allocation) {
		if h.Pool.Driver != driver {
			continue
		}
		consumed := func(capacity string) int64 {
			quantity, _ := devices.Lookup(h.ConsumedCapacity, driver, driver, capacity)
			return quantity.Value()
		}
		held = append(held, Holding{
			Namespace: claim.Namespace, Claim: claim.Name, Request: h.Request, Device: h.Name,
			Share: string(ptr.Deref(h.ShareID, "")), MemoryBytes: consumed(gpu.CapacityMemory),
			Shares: consumed(gpu.CapacityShares), Cores: consumed(gpu.CapacityCores),
			Pods: podsOf(claim), Admin: h.Admin, of: h,
		})
	}
	return held
}

// podsOf lists the pods that a claim is reserved for. Other objects than pods can reserve a claim.
func podsOf(claim *resourceapi.ResourceClaim) []string {
	var pods []string
	for _, consumer := range claim.Status.ReservedFor {
		if consumer.APIGroup == "" && consumer.Resource == "pods" {
			pods = append(pods, consumer.Name)
		}
	}
	return pods
}

// Pool is the name of the device's pool, which for a node's devices is the node.
func (h Holding) Pool() string { return h.of.Pool.Name }

// Shared reports whether the claim holds a share of the device.
func (h Holding) Shared() bool { return h.Share != "" }

func (h Holding) compare(other Holding) int {
	return cmp.Or(
		cmp.Compare(h.Namespace, other.Namespace), cmp.Compare(h.Claim, other.Claim),
		h.of.ID.Compare(other.of.ID), cmp.Compare(h.Request, other.Request), cmp.Compare(h.Share, other.Share),
	)
}
