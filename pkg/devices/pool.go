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

// PoolOf is the pool that the slice is of.
func PoolOf(slice *resourceapi.ResourceSlice) PoolID {
	return PoolID{Driver: slice.Spec.Driver, Name: slice.Spec.Pool.Name}
}

// Pool is what was published last of a pool.
type Pool struct {
	ID PoolID
	// Slices are those of the newest generation, by name, of which there is one at least.
	Slices []*resourceapi.ResourceSlice
}

// Pools gives the pools that the slices are of. They, and the devices in them, are in the
// order in which the scheduler tries them.
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

// OfNode are the pools of the slices that are of this node alone.
func OfNode(node string, published []*resourceapi.ResourceSlice) []Pool {
	var own []*resourceapi.ResourceSlice
	for _, slice := range published {
		if slice.Spec.NodeName != nil && *slice.Spec.NodeName == node {
			own = append(own, slice)
		}
	}
	return Pools(own)
}

// add keeps the slices of the newest generation.
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

// Devices are those of the slices, in the order in which the scheduler tries them.
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

// Announced is how many slices the pool is to have.
func (p Pool) Announced() int64 { return p.Slices[0].Spec.Pool.ResourceSliceCount }

// Complete tells that all slices are there: before, the scheduler gives no device of the pool.
func (p Pool) Complete() bool { return int64(len(p.Slices)) == p.Announced() }

// Last is the device of that name as it was published last, of slices of one pool; nil: it was
// not. While a pool is published anew some devices are in slices of the generation before.
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
