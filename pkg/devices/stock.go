package devices

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Stock is the devices that a node's pods can reach, with the free part of each.
type Stock struct {
	pools []Pool
	// Devices are those of complete pools, in the order in which the scheduler tries them.
	Devices  []*Device
	used     Use
	counters map[counter]resource.Quantity
}

// counter names a counter of a pool. What is left of it may be negative.
type counter struct {
	pool      PoolID
	set, name string
}

// NewStock returns the stock of slices whose devices are used as given.
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

// pay subtracts the counters of a device.
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

// Incomplete is the first pool that lacks slices; nil: there is none.
func (s *Stock) Incomplete() *Pool {
	i := slices.IndexFunc(s.pools, func(p Pool) bool { return !p.Complete() })
	if i < 0 {
		return nil
	}
	return &s.pools[i]
}

// Taken reports whether a claim has the whole device.
func (s *Stock) Taken(d *Device) bool { return s.used[d.ID].Whole }

// Shortage is a counter with less left than a device needs.
type Shortage struct {
	Set, Counter string
	Need, Left   resource.Quantity
}

// Short returns the first shortage, by counter set and name, that keeps claims from the device, or nil. The first
// share of a device consumes its counters; further shares consume none.
func (s *Stock) Short(d *Device) *Shortage {
	if d.Shared() && s.used[d.ID].Shared {
		return nil
	}
	for _, consumption := range d.ConsumesCounters {
		var short *Shortage
		for name, c := range consumption.Counters {
			left := s.counters[counter{d.ID.Pool, consumption.CounterSet, name}]
			if left.Cmp(c.Value) < 0 && (short == nil || name < short.Counter) {
				short = &Shortage{Set: consumption.CounterSet, Counter: name, Need: c.Value, Left: left}
			}
		}
		if short != nil {
			return short
		}
	}
	return nil
}

// Has reports whether a claim could have the device now, or its least share, whatever its taints.
func (s *Stock) Has(d *Device) bool {
	least := &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{}}
	for name, capacity := range d.Capacity {
		if policy := capacity.RequestPolicy; policy != nil && policy.ValidRange != nil && policy.ValidRange.Min != nil {
			least.Requests[name] = *policy.ValidRange.Min
		}
	}
	return !s.Taken(d) && s.Short(d) == nil && s.Crowded(d, least) == nil
}
