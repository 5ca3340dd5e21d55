package fit

import (
	"context"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/mica-gpu/mica/pkg/devices"
)

// allocations are the allocated devices, by pool.
func allocations(claims []*resourceapi.ResourceClaim) map[devices.PoolID][]devices.Holding {
	taken := map[devices.PoolID][]devices.Holding{}
	for _, claim := range claims {
		for held := range devices.Holdings(claim.Status.Allocation) {
			taken[held.Pool] = append(taken[held.Pool], held)
		}
	}
	return taken
}

// inventory is a layout in a state of use. It is immutable.
type inventory struct {
	layout   *layout
	used     devices.Use
	outcomes map[*demand]allocation
}

// allocation is the answer of an inventory to a demand: what is left and what is taken of the network, or a miss.
type allocation struct {
	inventory *inventory
	take      *take
	miss      *Miss
}

func (l *layout) inventory(used devices.Use) *inventory {
	key := useKey(used)
	known := l.inventories[key]
	if known == nil {
		known = &inventory{layout: l, used: used, outcomes: map[*demand]allocation{}}
		l.inventories[key] = known
	}
	return known
}

// allocate runs the allocator once for all machines with the same inventory, if only the inventory counts.
func (s Shared) allocate(ctx context.Context, m *Machine, d *demand) (allocation, error) {
	if known, ok := m.inventory.outcomes[d]; ok {
		return known, nil
	}
	got, err := s.search(ctx, m, d)
	if err == nil && !m.inventory.layout.networked {
		m.inventory.outcomes[d] = got
	}
	return got, err
}

func (s Shared) search(ctx context.Context, m *Machine, d *demand) (allocation, error) {
	layout := m.inventory.layout
	c, state := s.cluster, s.usedBy(m).State()
	results, err := c.ask(ctx, layout, state, d, d.claims)
	switch {
	case ctx.Err() != nil:
		return allocation{}, ctx.Err()
	case err != nil:
		return allocation{miss: missOfError(layout, d, err)}, nil
	case len(results) != len(d.claims):
		return allocation{miss: c.missOfDevices(ctx, layout, state, d)}, ctx.Err()
	}
	return c.left(m.inventory, results), nil
}

// ask runs the scheduler's allocator for claims of a demand, within the budget.
func (c *Cluster) ask(ctx context.Context, l *layout, state structured.AllocatedState, d *demand, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	search := &metered{Context: ctx, most: c.budget.of(d)}
	results, err := c.run(search, l, state, claims)
	c.budget.spent += search.steps + len(l.known.devices)
	if errors.Is(err, ErrSpent) {
		c.budget.endless[d]++
	}
	return results, err
}

func (c *Cluster) run(search *metered, l *layout, state structured.AllocatedState, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	published := c.candidates(search.Context, l, state, claims)
	allocator, err := structured.NewAllocator(search, features, state, c.classes, published, c.selectors.Compiled())
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(search, l.node, claims)
}

// left is the inventory without the allocated devices.
func (c *Cluster) left(from *inventory, results []resourceapi.AllocationResult) allocation {
	used := from.used.Clone()
	var ofNetwork []devices.Holding
	for i := range results {
		for held := range devices.Holdings(&results[i]) {
			if c.network.pools[held.Pool] {
				ofNetwork = append(ofNetwork, held)
			} else {
				used.Add(held)
			}
		}
	}
	return allocation{inventory: from.layout.inventory(used), take: c.network.take(ofNetwork)}
}

// missOfError is the miss for an error of the allocator.
func missOfError(l *layout, d *demand, err error) *Miss {
	miss := &Miss{Reason: ReasonDevices, Aborts: !errors.Is(err, structured.ErrFailedAllocationOnNode)}
	if errors.Is(err, ErrSpent) {
		miss.Text = fmt.Sprintf("cannot decide whether %s can be allocated: there are too many combinations of devices to try; "+
			"ask for several devices by the count of one request rather than by several requests", d.named())
		return miss
	}
	miss.Text = fmt.Sprintf("%s cannot be allocated: %s", d.named(), anonymous(l, d, err))
	return miss
}

// anonymous is the allocator's error without the names of claims and pools. The allocator ran for the first pod on the
// first node, but the error stands for all that are alike.
func anonymous(l *layout, d *demand, err error) string {
	var pairs []string
	for i, claim := range d.claims {
		pairs = append(pairs, "claim "+claim.Namespace+"/"+claim.Name+":", d.names[i]+":", "claim "+claim.Namespace+"/"+claim.Name+",", d.names[i]+",")
	}
	for _, pool := range l.pools {
		pairs = append(pairs, pool.Driver+"/"+pool.Name+"/", pool.Driver+"/", pool.Driver+"/"+pool.Name+" ", pool.Driver+" ")
	}
	return strings.NewReplacer(pairs...).Replace(err.Error())
}

// missOfDevices names the first claim that cannot be allocated even alone.
func (c *Cluster) missOfDevices(ctx context.Context, l *layout, state structured.AllocatedState, d *demand) *Miss {
	if len(d.claims) == 1 {
		return &Miss{Reason: ReasonDevices, Text: d.named() + " cannot be allocated"}
	}
	for i, claim := range d.claims {
		if results, err := c.ask(ctx, l, state, d, []*resourceapi.ResourceClaim{claim}); err == nil && len(results) == 0 {
			return &Miss{Reason: ReasonDevices, Text: d.names[i] + " cannot be allocated"}
		}
	}
	return &Miss{Reason: ReasonDevices, Text: d.named() + " cannot be allocated together"}
}
