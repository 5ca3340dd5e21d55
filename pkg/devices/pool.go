package devices

import (
	"cmp"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
)

// PoolID names a pool.
type PoolID struct{ Driver, Name string }

// Compare orders pools as the scheduler does.
func (p PoolID) Compare(other PoolID) int {
	return cmp.Or(cmp.Compare(p.Driver, other.Driver), cmp.Compare(p.Name, other.Name))
}

// PoolOf returns the pool of a slice.
func PoolOf(slice *resourceapi.ResourceSlice) PoolID {
	return PoolID{Driver: slice.Spec.Driver, Name: slice.Spec.Pool.Name}
}

// Pool is the newest generation of a pool.
type Pool struct {
	ID PoolID
	// Slices are sorted by name. There is at least one.
	Slices []*resourceapi.ResourceSlice
}

// Pools returns the pools of slices, in the order in which the scheduler tries them.
func Pools(published []*resourceapi.ResourceSlice) []Pool {
	var pools []Pool
	at := map[PoolID]int{}
	for _, slice := range published {
		id := PoolOf(slice)
		i, known := at[id]
		if !known {
			i = len(pools)
			at[id] = i
			pools = append(pools, Pool{ID: id})
		}
		pools[i].add(slice)
	}
	for _, p := range pools {
		slices.SortStableFunc(p.Slices, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(pools, func(a, b Pool) int { return a.ID.Compare(b.ID) })
	return pools
}

// OfNode returns the pools of the slices that only this node can use.
func OfNode(node string, published []*resourceapi.ResourceSlice) []Pool {
	var own []*resourceapi.ResourceSlice
	for _, slice := range published {
		if slice.Spec.NodeName != nil && *slice.Spec.NodeName == node {
			own = append(own, slice)
		}
	}
	return Pools(own)
}

// add drops slices of older generations.
func (p *Pool) add(slice *resourceapi.ResourceSlice) {
	if len(p.Slices) > 0 {
		switch known := p.Slices[0].Spec.Pool.Generation; {
		case slice.Spec.Pool.Generation < known:
			return
		case slice.Spec.Pool.Generation > known:
			p.Slices = nil
		}
	}
	p.Slices = append(p.Slices, slice)
}

// Devices returns the devices of the slices, in the order in which the scheduler tries them.
func (p Pool) Devices() []*Device {
	var all []*Device
	for _, slice := range p.Slices {
		own := OwnOf(slice)
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			all = append(all, &Device{Device: d, ID: ID{Pool: p.ID, Name: d.Name}, Own: own})
		}
	}
	return all
}

// Announced is the number of slices that the pool has when it is complete.
func (p Pool) Announced() int64 { return p.Slices[0].Spec.Pool.ResourceSliceCount }

// Complete reports whether all slices are there. The scheduler allocates no device of an incomplete pool.
func (p Pool) Complete() bool { return int64(len(p.Slices)) == p.Announced() }

// Last returns the newest version of a device in the slices of one pool; nil: no slice has it. While a
// driver publishes a new generation, some devices are only in slices of the previous one.
func Last(pool []resourceapi.ResourceSlice, name string) *resourceapi.Device {
	var found *resourceapi.Device
	newest := int64(-1)
	for i := range pool {
		spec := &pool[i].Spec
		if spec.Pool.Generation <= newest {
			continue
		}
		if at := slices.IndexFunc(spec.Devices, func(d resourceapi.Device) bool { return d.Name == name }); at >= 0 {
			found, newest = &spec.Devices[at], spec.Pool.Generation
		}
	}
	return found
}
