package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// slot is a device of a pool.
type slot struct {
	pool   poolID
	device string
}

func (s slot) compare(other slot) int {
	return cmp.Or(s.pool.compare(other.pool), cmp.Compare(s.device, other.device))
}

// usage is what is taken of a device.
type usage struct {
	// whole tells that one claim has all of it, shared that claims have shares.
	whole, shared bool
	consumed      map[resourceapi.QualifiedName]resource.Quantity
}

// use is what is taken of devices, as the scheduler counts it.
type use map[slot]usage

// allocations are what claims have, by pool.
func allocations(claims []*resourceapi.ResourceClaim) map[poolID][]*resourceapi.DeviceRequestAllocationResult {
	taken := map[poolID][]*resourceapi.DeviceRequestAllocationResult{}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		results := claim.Status.Allocation.Devices.Results
		for i := range results {
			id := poolID{driver: results[i].Driver, name: results[i].Pool}
			taken[id] = append(taken[id], &results[i])
		}
	}
	return taken
}

// add counts a result of an allocation. One with admin access takes nothing.
func (u use) add(at slot, result *resourceapi.DeviceRequestAllocationResult) {
	if ptr.Deref(result.AdminAccess, false) {
		return
	}
	known := u[at]
	if result.ShareID == nil {
		known.whole = true
		u[at] = known
		return
	}
	known.shared = true
	if result.ConsumedCapacity != nil {
		consumed := make(map[resourceapi.QualifiedName]resource.Quantity, len(result.ConsumedCapacity))
		maps.Copy(consumed, known.consumed)
		for name, quantity := range result.ConsumedCapacity {
			sum := quantity.DeepCopy()
			sum.Add(consumed[name])
			consumed[name] = sum
		}
		known.consumed = consumed
	}
	u[at] = known
}

func (u use) take(t *take) {
	for i := range t.results {
		result := &t.results[i]
		u.add(slot{pool: poolID{driver: result.Driver, name: result.Pool}, device: result.Device}, result)
	}
}

// clone may share what add does not change.
func (u use) clone() use { return maps.Clone(u) }

func (u use) key() string {
	s := make(signature, 0, 64*len(u))
	for _, at := range slices.SortedFunc(maps.Keys(u), slot.compare) {
		s.text(at.pool.driver)
		s.text(at.pool.name)
		s.text(at.device)
		taken := u[at]
		s.flag(taken.whole)
		s.flag(taken.shared)
		s.flag(taken.consumed != nil)
		s.number(int64(len(taken.consumed)))
		for _, name := range slices.Sorted(maps.Keys(taken.consumed)) {
			s.text(string(name))
			quantity := taken.consumed[name]
			s.text(quantity.String())
		}
	}
	return string(s)
}

// state is the use as the allocator wants it, with pools renamed.
func (u use) state(rename func(poolID) poolID) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	u.into(state, rename)
	return state
}

// anyShare stands for the shares of a device: the allocator only asks whether there are any.
var anyShare = types.UID("taken")

func (u use) into(state structured.AllocatedState, rename func(poolID) poolID) {
	for at, taken := range u {
		at.pool = rename(at.pool)
		id := structured.MakeDeviceID(at.pool.driver, at.pool.name, at.device)
		if taken.whole {
			state.AllocatedDevices.Insert(id)
		}
		if taken.shared {
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, &anyShare))
		}
		if taken.consumed != nil {
			state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, taken.consumed))
		}
	}
}

func same(id poolID) poolID { return id }

// inventory is a layout in a state of use. It does not change.
type inventory struct {
	layout   *layout
	used     use
	outcomes map[*demand]allocation
}

// allocation is what an inventory has for a demand.
type allocation struct {
	inventory *inventory
	take      *take
	miss      *Miss
}

func (l *layout) inventory(used use) *inventory {
	key := used.key()
	known := l.inventories[key]
	if known == nil {
		known = &inventory{layout: l, used: used, outcomes: map[*demand]allocation{}}
		l.inventories[key] = known
	}
	return known
}

// allocate asks the allocator once for all machines with the same inventory, where nothing
// but the inventory counts.
func (c *Cluster) allocate(ctx context.Context, m *Machine, d *demand) (allocation, error) {
	if known, ok := m.inventory.outcomes[d]; ok {
		return known, nil
	}
	got, err := c.search(ctx, m, d)
	if err == nil && !m.inventory.layout.networked {
		m.inventory.outcomes[d] = got
	}
	return got, err
}

func (c *Cluster) search(ctx context.Context, m *Machine, d *demand) (allocation, error) {
	layout := m.inventory.layout
	state := m.inventory.used.state(same)
	if layout.networked {
		c.network.with(m.takes).into(state, same)
	}
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

// ask runs the scheduler's allocator for claims of a demand, as far as the budget goes.
func (c *Cluster) ask(ctx context.Context, l *layout, state structured.AllocatedState, d *demand, claims []*resourceapi.ResourceClaim) ([]resourceapi.AllocationResult, error) {
	published := c.candidates(ctx, l, state, claims)
	search := &metered{Context: ctx, most: c.budget.of(d)}
	allocator, err := structured.NewAllocator(search, features, state, c.classes, published, compiled)
	if err != nil {
		return nil, err
	}
	results, err := allocator.Allocate(search, l.node, claims)
	c.budget.spent += search.steps + len(l.known.devices)
	if errors.Is(err, ErrSpent) {
		c.budget.endless[d]++
	}
	return results, err
}

// left is the inventory without what was given.
func (c *Cluster) left(from *inventory, results []resourceapi.AllocationResult) allocation {
	used := from.used.clone()
	var ofNetwork []resourceapi.DeviceRequestAllocationResult
	for i := range results {
		devices := results[i].Devices.Results
		for j := range devices {
			id := poolID{driver: devices[j].Driver, name: devices[j].Pool}
			if !c.network.pools[id] {
				used.add(slot{pool: id, device: devices[j].Device}, &devices[j])
			} else if !ptr.Deref(devices[j].AdminAccess, false) {
				ofNetwork = append(ofNetwork, devices[j])
			}
		}
	}
	return allocation{inventory: from.layout.inventory(used), take: c.network.take(ofNetwork)}
}

// missOfError tells what the allocator could not do.
func missOfError(l *layout, d *demand, err error) *Miss {
	miss := &Miss{Reason: ReasonDevices, Aborts: !errors.Is(err, structured.ErrFailedAllocationOnNode)}
	if errors.Is(err, ErrSpent) {
		miss.Text = fmt.Sprintf("whether %s can be allocated was not found out: there are too many combinations of devices to try; "+
			"ask for several devices by the count of one request rather than by several requests", d.named())
		return miss
	}
	miss.Text = fmt.Sprintf("%s cannot be allocated: %s", d.named(), anonymous(l, d, err))
	return miss
}

// anonymous is the allocator's error without the names of the first pod's claims and the first
// node's pools, for which it was asked: it is told of all that are alike.
func anonymous(l *layout, d *demand, err error) string {
	var pairs []string
	for i, claim := range d.claims {
		pairs = append(pairs, "claim "+claim.Namespace+"/"+claim.Name+":", d.names[i]+":", "claim "+claim.Namespace+"/"+claim.Name+",", d.names[i]+",")
	}
	for _, pool := range l.pools {
		pairs = append(pairs, pool.driver+"/"+pool.name+"/", pool.driver+"/", pool.driver+"/"+pool.name+" ", pool.driver+" ")
	}
	return strings.NewReplacer(pairs...).Replace(err.Error())
}

// missOfDevices names the first claim that cannot be had even alone.
func (c *Cluster) missOfDevices(ctx context.Context, l *layout, state structured.AllocatedState, d *demand) *Miss {
	if len(d.claims) > 1 {
		for i, claim := range d.claims {
			results, err := c.ask(ctx, l, state, d, []*resourceapi.ResourceClaim{claim})
			if err == nil && len(results) == 0 {
				return &Miss{Reason: ReasonDevices, Text: fmt.Sprintf("%s cannot be allocated", d.names[i])}
			}
		}
		return &Miss{Reason: ReasonDevices, Text: fmt.Sprintf("%s cannot be allocated together", d.named())}
	}
	return &Miss{Reason: ReasonDevices, Text: fmt.Sprintf("%s cannot be allocated", d.named())}
}
