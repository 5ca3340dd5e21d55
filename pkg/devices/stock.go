package devices

import (
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Stock is what a node's pods can reach of devices, and what of it is left.
type Stock struct {
	pools []Pool
	// Devices are those of the pools that are complete, as the scheduler tries them.
	Devices  []*Device
	used     Use
	counters map[counter]resource.Quantity
}

// counter names one of a pool. What is left of it may be less than nothing.
type counter struct {
	pool      PoolID
	set, name string
}

// NewStock reads the slices, and what is used of their devices.
func NewStock(published []*resourceapi.ResourceSlice, used Use) *Stock {
	s := &Stock{pools: Pools(published), used: Use{}, counters: map[counter]resource.Quantity{}}
	for _, p := range s.pools {
		if p.Complete() {
			s.add(p)
		}
	}
	for _, d := range s.Devices {
		if taken, is := used[d.ID]; is {
			s.pay(d)
			s.used[d.ID] = taken
		}
	}
	return s
}

func (s *Stock) add(p Pool) {
	for _, slice := range p.Slices {
		for _, set := range slice.Spec.SharedCounters {
			for name, c := range set.Counters {
				s.counters[counter{p.ID, set.Name, name}] = c.Value.DeepCopy()
			}
		}
	}
	s.Devices = append(s.Devices, p.Devices()...)
}

// pay takes a device's counters.
func (s *Stock) pay(d *Device) {
	for _, consumption := range d.ConsumesCounters {
		for name, c := range consumption.Counters {
			k := counter{d.ID.Pool, consumption.CounterSet, name}
			left := s.counters[k].DeepCopy()
			left.Sub(c.Value)
			s.counters[k] = left
		}
	}
}

// Incomplete is the first pool of which slices are missing; nil where there is none.
func (s *Stock) Incomplete() *Pool {
	i := slices.IndexFunc(s.pools, func(p Pool) bool { return !p.Complete() })
	if i < 0 {
		return nil
	}
	return &s.pools[i]
}

// Clone can be taken from without a change to this one.
func (s *Stock) Clone() *Stock {
	c := *s
	c.used, c.counters = s.used.Clone(), maps.Clone(s.counters)
	return &c
}

// Taken tells that nobody can have the device any more.
func (s *Stock) Taken(d *Device) bool { return s.used[d.ID].Whole }

// Take takes the device, or of one that is shared, what a request takes of its capacities. Who
// calls has found that there is enough.
func (s *Stock) Take(d *Device, asked *resourceapi.CapacityRequirements) {
	if !s.used[d.ID].Shared {
		s.pay(d)
	}
	if !d.Shared() {
		s.used.takeWhole(d.ID)
		return
	}
	consumes := make(map[resourceapi.QualifiedName]resource.Quantity, len(d.Capacity))
	for name := range d.Capacity {
		consumes[name] = d.Consumes(name, asked)
	}
	s.used.takeShare(d.ID, consumes)
}

// Shortage is a counter of which a device needs more than is left.
type Shortage struct {
	Set, Counter string
	Need, Left   resource.Quantity
}

// Short is the first shortage that keeps the device from being had; nil where there is none.
// The first share of a device pays for all.
func (s *Stock) Short(d *Device) *Shortage {
	if d.Shared() && s.used[d.ID].Shared {
		return nil
	}
	if s.pays(d) {
		return nil
	}
	for _, consumption := range d.ConsumesCounters {
		for _, name := range slices.Sorted(maps.Keys(consumption.Counters)) {
			need := consumption.Counters[name].Value
			left := s.counters[counter{d.ID.Pool, consumption.CounterSet, name}]
			if left.Cmp(need) < 0 {
				return &Shortage{Set: consumption.CounterSet, Counter: name, Need: need, Left: left}
			}
		}
	}
	return nil
}

// pays tells that there is enough of each counter: most devices fit, and nobody asks of those in order.
func (s *Stock) pays(d *Device) bool {
	for _, consumption := range d.ConsumesCounters {
		for name, need := range consumption.Counters {
			if left := s.counters[counter{d.ID.Pool, consumption.CounterSet, name}]; left.Cmp(need.Value) < 0 {
				return false
			}
		}
	}
	return true
}

// Has tells that a claim could have the device now, or a share of default size, whatever its taints.
func (s *Stock) Has(d *Device) bool {
	return !s.Taken(d) && s.Short(d) == nil && s.Crowded(d, nil) == nil
}
