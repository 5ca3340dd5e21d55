package usage

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/gpu"
)

type (
	// consumption is a share's part of a device's capacities.
	consumption map[resourceapi.QualifiedName]resource.Quantity
	// capacity is a device's total for all shares.
	capacity map[resourceapi.QualifiedName]resourceapi.DeviceCapacity
)

// shareKey identifies a share of a device.
type shareKey struct{ claim, share types.UID }

func keyOf(claim types.UID, share *types.UID) shareKey {
	key := shareKey{claim: claim}
	if share != nil {
		key.share = *share
	}
	return key
}

// isShare reports whether the claim shares the device.
func isShare(d workload.Device) bool { return d.ShareID != nil || len(d.ConsumedCapacity) > 0 }

// divide returns a share's fraction of its device, and the fraction of memory in all shares together.
func (c cluster) divide(ctx context.Context, h hold) (own fraction, together float64, err error) {
	d := h.device
	whole, err := c.capacity(ctx, d.Pool.Name, d.Name)
	if err != nil {
		return fraction{}, 0, fmt.Errorf("read how %s is shared: %w", h, err)
	}
	all, err := c.shares(ctx, d.Pool.Name, d.Name)
	if err != nil {
		return fraction{}, 0, fmt.Errorf("list the shares of %s: %w", h, err)
	}
	// The cache may have the workload's pods before, or after, these claims.
	all[keyOf(d.Claim, d.ShareID)] = d.ConsumedCapacity
	unlimited := false
	for key, consumed := range all {
		p, err := c.fractionOf(consumed, whole)
		if err != nil {
			return fraction{}, 0, fmt.Errorf("compute the share of %s that the claim of UID %s holds: %w", h, key.claim, err)
		}
		together += p.memory
		unlimited = unlimited || p == fraction{}
		if key == keyOf(d.Claim, d.ShareID) {
			own = p
		}
	}
	if unlimited {
		equal := 1 / float64(len(all))
		return fraction{time: equal, memory: equal}, 1, nil
	}
	return own, together, nil
}

var errNoFraction = errors.New("its allocation has none of the shares, cores and memory that the device's slice counts: delete its pods, so that it is allocated anew")

// fractionOf returns a share's fraction, by the capacities that both its allocation and the device
// count. It is 0 if the allocation takes nothing of them, as a claim may if their number is not limited.
func (c cluster) fractionOf(consumed consumption, whole capacity) (fraction, error) {
	counted := len(whole) == 0
	first := func(names ...string) float64 {
		for _, name := range names {
			has, takes := devices.Lookup(consumed, c.driver, c.driver, name)
			of, _ := devices.Lookup(whole, c.driver, c.driver, name)
			counted = counted || takes && of.Value.Sign() > 0
			if has.Sign() > 0 && of.Value.Sign() > 0 {
				return has.AsApproximateFloat64() / of.Value.AsApproximateFloat64()
			}
		}
		return 0
	}
	p := fraction{
		time:   first(gpu.CapacityShares, gpu.CapacityCores, gpu.CapacityMemory),
		memory: first(gpu.CapacityMemory, gpu.CapacityShares, gpu.CapacityCores),
	}
	if !counted {
		return fraction{}, errNoFraction
	}
	return p, nil
}
