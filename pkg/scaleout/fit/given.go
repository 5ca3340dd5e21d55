package fit

import (
	"context"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/devices"
)

// Given is what a claim of a pod gets.
type Given struct {
	// Claim is the object, or one that is imagined for extended resources.
	Claim *resourceapi.ResourceClaim
	// Called is how the pod's owner calls it.
	Called  string
	Results []resourceapi.DeviceRequestAllocationResult
}

// Given are the devices that a pod gets which Place has put on the machine, by the names that they
// have on the node. It asks the allocator again, which finds the same as long as the same is committed.
// What was allocated or placed before is not among them.
func (c *Cluster) Given(ctx context.Context, m *Machine, p *Pod, on Node) ([]Given, error) {
	d := c.demand(p, m.traits)
	if len(d.claims) == 0 {
		return nil, nil
	}
	layout := m.inventory.layout
	results, err := c.ask(ctx, layout, c.used(m).State(), d, d.claims)
	if err != nil || len(results) != len(d.claims) {
		return nil, err
	}
	pools := localPools(on, &c.network)
	all := make([]Given, len(results))
	for i := range results {
		all[i] = Given{Claim: d.claims[i], Called: d.names[i], Results: results[i].Devices.Results}
		for j := range all[i].Results {
			result := &all[i].Results[j]
			// Alike nodes are one machine, which has the names of the first of them.
			if at := slices.Index(layout.pools, devices.Of(result).Pool); at >= 0 && at < len(pools) {
				result.Pool = pools[at].ID.Name
			}
		}
	}
	return all, nil
}

// used is what is taken of all devices within the machine's reach.
func (c *Cluster) used(m *Machine) devices.Use {
	if !m.inventory.layout.networked {
		return m.inventory.used
	}
	used := m.inventory.used.Clone()
	maps.Copy(used, c.network.with(m.takes))
	return used
}
