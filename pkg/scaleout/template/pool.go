package template

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// pool is what a driver has published last of a pool on one node.
type pool struct {
	driver, name string
	generation   int64
	slices       []*resourceapi.ResourceSlice
}

// poolsOf are a node's own pools, by driver and name; each has its slices of the newest
// generation, in the order of their names, which is that of the pool.
func poolsOf(node *corev1.Node, all []*resourceapi.ResourceSlice) []*pool {
	var pools []*pool
	for _, s := range all {
		if s.Spec.NodeName == nil || *s.Spec.NodeName != node.Name {
			continue
		}
		i := slices.IndexFunc(pools, func(p *pool) bool { return p.driver == s.Spec.Driver && p.name == s.Spec.Pool.Name })
		if i < 0 {
			i = len(pools)
			pools = append(pools, &pool{driver: s.Spec.Driver, name: s.Spec.Pool.Name, generation: s.Spec.Pool.Generation})
		}
		p := pools[i]
		if s.Spec.Pool.Generation > p.generation {
			p.generation, p.slices = s.Spec.Pool.Generation, nil
		}
		if s.Spec.Pool.Generation == p.generation {
			p.slices = append(p.slices, s)
		}
	}
	for _, p := range pools {
		slices.SortFunc(p.slices, func(a, b *resourceapi.ResourceSlice) int { return cmp.Compare(a.Name, b.Name) })
	}
	slices.SortFunc(pools, func(a, b *pool) int { return cmp.Or(cmp.Compare(a.driver, b.driver), cmp.Compare(a.name, b.name)) })
	return pools
}

// announced is how many slices the pool is to have.
func (p *pool) announced() int64 { return p.slices[0].Spec.Pool.ResourceSliceCount }

func (p *pool) complete() bool { return int64(len(p.slices)) == p.announced() }

// devices are those that new claims can have.
func (p *pool) devices() int {
	n := 0
	for _, s := range p.slices {
		for _, d := range s.Spec.Devices {
			if !isWithdrawn(d) {
				n++
			}
		}
	}
	return n
}

func ofDriver(pools []*pool, driver string) []*pool {
	var own []*pool
	for _, p := range pools {
		if p.driver == driver {
			own = append(own, p)
		}
	}
	return own
}
