package fit

import (
	"cmp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// layout is the devices of nodes that are alike, with the names of the first node.
type layout struct {
	node   *corev1.Node
	slices []*resourceapi.ResourceSlice
	pools  []devices.PoolID
	// networked reports whether the nodes reach devices of the network, exact whether the identities of GPUs count.
	networked   bool
	exact       bool
	inventories map[string]*inventory
	known       *candidates
}

// localPools are the pools of the node alone, in the allocator's order.
func localPools(n Node, network *network) []devices.Pool {
	return slices.DeleteFunc(devices.OfNode(n.Object.Name, n.Slices), func(p devices.Pool) bool { return network.pools[p.ID] })
}

// layout returns the one layout for all nodes with the same answers for every claim.
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
	l := &layout{node: n.Object, networked: len(reach) > 0, exact: c.exact(len(reach) > 0), inventories: map[string]*inventory{}}
	for _, pool := range pools {
		l.pools = append(l.pools, pool.ID)
		l.slices = append(l.slices, pool.Slices...)
	}
	l.slices = append(l.slices, c.network.slices...)
	c.layouts[key] = l
	return l
}

// visible are the slices with devices for the node's pods.
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

// layoutSignature is equal for nodes on which the allocator finds the same, in the same order. Names of the node's
// pools count only for their order among those of the network. Attributes count only if an expression reads or a
// constraint compares them; if they are compared with devices of the network, their values count. The next call
// overwrites the result.
func (c *Cluster) layoutSignature(pools []devices.Pool, reach []reached) signature {
	s := c.scratch[:0]
	defer func() { c.scratch = s }()
	networked, numbers := len(reach) > 0, map[idValue]int{}
	for _, pool := range pools {
		for len(reach) > 0 && reach[0].id.Compare(pool.ID) < 0 {
			reach = s.reached(reach)
		}
		s.text(pool.ID.Driver)
		s.number(int64(len(pool.Slices)))
		for _, slice := range pool.Slices {
			s.number(slice.Spec.Pool.ResourceSliceCount)
			content := c.content(slice, networked)
			s.number(int64(content.number))
			for _, v := range content.compared {
				s.number(int64(numbered(numbers, v.idValue)))
			}
		}
	}
	for len(reach) > 0 {
		reach = s.reached(reach)
	}
	return s
}

// exact reports whether the identities of GPUs count: an expression reads them, or constraints may compare them with
// devices of the network.
func (c *Cluster) exact(networked bool) bool {
	return networked || c.words.everything || c.words.read[gpu.AttributeUUID] || c.words.read[gpu.AttributeParentUUID]
}

// content is what counts of a slice's devices and counters.
type content struct {
	// number is equal for slices that differ only in the values of compared.
	number   int
	compared []comparand
}

// comparand is a device's attribute that is only compared with others.
type comparand struct {
	name resourceapi.QualifiedName
	idValue
}

// idValue is the name of an attribute without its domain, and the hash of its value.
type idValue struct {
	id    string
	value uint64
}

// place is the place of a slice's content in memory. Many slices share it: see devices.Compactor.
type place struct {
	devices  *resourceapi.Device
	counters *resourceapi.CounterSet
}

// content reads a slice. It reads shared content once.
func (c *Cluster) content(slice *resourceapi.ResourceSlice, networked bool) content {
	if c.exact(networked) {
		return c.read(slice, devices.OwnOf(slice), networked)
	}
	at := place{devices: first(slice.Spec.Devices), counters: first(slice.Spec.SharedCounters)}
	known, met := c.contents[at]
	if !met {
		known = c.read(slice, nil, networked)
		c.contents[at] = known
	}
	return known
}

func first[T any](list []T) *T {
	if len(list) == 0 {
		return nil
	}
	return &list[0]
}

func (c *Cluster) read(slice *resourceapi.ResourceSlice, own devices.Own, networked bool) content {
	s := make(signature, 0, 4096)
	var read content
	spec := &slice.Spec
	s.number(int64(len(spec.SharedCounters)))
	for i := range spec.SharedCounters {
		set := &spec.SharedCounters[i]
		s.text(set.Name)
		s.hash(hashCounters(set.Counters))
	}
	s.number(int64(len(spec.Devices)))
	for i := range spec.Devices {
		device := &spec.Devices[i]
		hash, compared := c.attributesHash(device.Attributes, own, networked)
		s.hash(hash)
		read.compared = append(read.compared, compared...)
		s.device(device)
	}
	number, met := c.numbers[string(s)] // this spelling of a lookup copies no text
	if !met {
		number = len(c.numbers)
		c.numbers[string(s)] = number
	}
	read.number = number
	return read
}

// device adds a device without its attributes.
func (s *signature) device(d *resourceapi.Device) {
	s.text(d.Name)
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

// numbered returns the number of a key, in the order in which keys are met.
func numbered[K comparable](numbers map[K]int, key K) int {
	n, met := numbers[key]
	if !met {
		n = len(numbers)
		numbers[key] = n
	}
	return n
}

// attributesHash does not depend on the order of the map. If devices of the network are within reach, it covers all
// values. Otherwise compared has the attributes that are only compared, sorted by name.
func (c *Cluster) attributesHash(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, own devices.Own, networked bool) (sum uint64, compared []comparand) {
	for name := range attributes { // without the values: they are large, and few count
		a := c.words.attribute(name)
		if !a.read && !a.compared {
			continue
		}
		value := hashAttribute(own.Attribute(name, attributes[name]))
		if a.read || networked {
			sum += mix(a.hash, value)
			continue
		}
		sum += mix(a.hash, 7)
		compared = append(compared, comparand{name, idValue{a.id, value}})
	}
	slices.SortFunc(compared, func(a, b comparand) int { return cmp.Compare(a.name, b.name) })
	return sum, compared
}
