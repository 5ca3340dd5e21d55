package fit

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
)

// layout is the devices of nodes that are alike, by the names of the first of them.
type layout struct {
	node   *corev1.Node
	slices []*resourceapi.ResourceSlice
	pools  []devices.PoolID
	// networked tells that devices of the network are within reach.
	networked   bool
	inventories map[string]*inventory
	known       *candidates
}

// localPools are the pools that are the node's alone, in the allocator's order.
func localPools(n Node, network *network) []devices.Pool {
	return slices.DeleteFunc(devices.OfNode(n.Object.Name, n.Slices), func(p devices.Pool) bool { return network.pools[p.ID] })
}

// layout is the one of all nodes on which every claim fares alike.
func (c *Cluster) layout(n Node, pools []devices.Pool) *layout {
	reach := c.network.reach(n.Object)
	s := c.layoutSignature(pools, reach)
	if known := c.layouts[string(s)]; known != nil && !c.separate {
		return known
	}
	key := string(s)
	if c.separate {
		key = strconv.Itoa(len(c.layouts))
	}
	l := &layout{node: n.Object, networked: len(reach) > 0, inventories: map[string]*inventory{}}
	for _, pool := range pools {
		l.pools = append(l.pools, pool.ID)
		l.slices = append(l.slices, pool.Slices...)
	}
	l.slices = append(l.slices, c.network.slices...)
	c.layouts[key] = l
	return l
}

// visible are the slices with devices that a node's pods can get.
func (c *Cluster) visible(n Node, pools []devices.Pool) []*resourceapi.ResourceSlice {
	var all []*resourceapi.ResourceSlice
	for _, pool := range pools {
		all = append(all, pool.Slices...)
	}
	for _, reached := range c.network.reach(n.Object) {
		all = append(all, reached.slice)
	}
	return all
}

// layoutSignature is equal where the allocator finds the same, in the same order. Names of the
// node's pools count only for their order among those of the network, and of attributes only
// what somebody reads or compares; what is compared with devices of the network counts by its
// value. The next call overwrites it.
func (c *Cluster) layoutSignature(pools []devices.Pool, reach []reached) signature {
	s := c.scratch[:0]
	defer func() { c.scratch = s }()
	var compared comparison
	if len(reach) == 0 {
		compared = comparison{}
	}
	for _, pool := range pools {
		for len(reach) > 0 && reach[0].id.Compare(pool.ID) < 0 {
			reach = s.reached(reach)
		}
		s.text(pool.ID.Driver)
		s.number(int64(len(pool.Slices)))
		for _, slice := range pool.Slices {
			c.sliceSignature(&s, slice, compared)
		}
	}
	for len(reach) > 0 {
		reach = s.reached(reach)
	}
	return s
}

func (c *Cluster) sliceSignature(s *signature, slice *resourceapi.ResourceSlice, compared comparison) {
	spec := &slice.Spec
	s.number(spec.Pool.ResourceSliceCount)
	s.number(int64(len(spec.SharedCounters)))
	for i := range spec.SharedCounters {
		set := &spec.SharedCounters[i]
		s.text(set.Name)
		s.hash(hashCounters(set.Counters))
	}
	s.number(int64(len(spec.Devices)))
	for i := range spec.Devices {
		c.deviceSignature(s, &spec.Devices[i], compared)
	}
}

func (c *Cluster) deviceSignature(s *signature, d *resourceapi.Device, compared comparison) {
	s.text(d.Name)
	s.hash(c.attributesHash(d.Attributes, compared))
	s.hash(hashCapacity(d.Capacity))
	s.number(int64(len(d.ConsumesCounters)))
	for i := range d.ConsumesCounters {
		consumed := &d.ConsumesCounters[i]
		s.text(consumed.CounterSet)
		s.hash(hashCounters(consumed.Counters))
		s.flag(len(consumed.CompatibilityGroups) > 0)
	}
	s.number(int64(len(d.Taints)))
	for i := range d.Taints {
		s.text(d.Taints[i].Key)
		s.text(d.Taints[i].Value)
		s.text(string(d.Taints[i].Effect))
	}
	s.flag(d.AllowMultipleAllocations != nil)
	s.flag(ptr.Deref(d.AllowMultipleAllocations, false))
	s.flag(d.BindingConditions != nil)
	s.flag(ptr.Deref(d.BindsToNode, false))
}

// comparison numbers the values of attributes that are only compared, each in the order in
// which it is met. Where it is nil, the values themselves count.
type comparison map[string]map[uint64]uint64

func (c comparison) number(id string, value uint64) uint64 {
	numbers := c[id]
	if numbers == nil {
		numbers = map[uint64]uint64{}
		c[id] = numbers
	}
	n, ok := numbers[value]
	if !ok {
		n = uint64(len(numbers))
		numbers[value] = n
	}
	return n
}

// attributesHash is the same in whatever order the map gives them.
func (c *Cluster) attributesHash(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, compared comparison) uint64 {
	var sum uint64
	for name := range attributes { // without the values, which are large, and of which few count
		switch a := c.words.attribute(name); {
		case a.read, a.compared && compared == nil:
			sum += mix(a.hash, hashAttribute(attributes[name]))
		case a.compared:
			sum += mix(a.hash, mix(7, compared.number(a.id, hashAttribute(attributes[name]))))
		}
	}
	return sum
}
