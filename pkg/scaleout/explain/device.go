package explain

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"
)

// Offer is what a node has for claims.
type Offer struct {
	Node *corev1.Node
	// Slices are those of the node, and Allocated is what of them is taken.
	Slices    []*resourceapi.ResourceSlice
	Allocated structured.AllocatedState
	// Imagined tells that the node does not exist: what only a node knows is not there.
	Imagined bool
}

// device is one of an offer.
type device struct {
	*resourceapi.Device
	slice *resourceapi.ResourceSlice
	pool  *pool
	id    structured.DeviceID
}

func (d *device) driver() string { return d.slice.Spec.Driver }

// shared tells that several claims may have the device at once.
func (d *device) shared() bool { return ptr.Deref(d.AllowMultipleAllocations, false) }

func (d *device) attribute(f field) *resourceapi.DeviceAttribute {
	for _, name := range f.names(d.driver()) {
		if attribute, ok := d.Attributes[name]; ok {
			return &attribute
		}
	}
	return nil
}

func (d *device) capacity(f field) *resourceapi.DeviceCapacity {
	for _, name := range f.names(d.driver()) {
		if capacity, ok := d.Capacity[name]; ok {
			return &capacity
		}
	}
	return nil
}

// input is the device as selectors see it.
func (d *device) input() cel.Device {
	return cel.Device{
		Driver: d.driver(), AllowMultipleAllocations: d.AllowMultipleAllocations,
		Attributes: d.Attributes, Capacity: d.Capacity,
	}
}

// kind is the device's type where its driver publishes one.
func (d *device) kind() string {
	if attribute := d.attribute(field{sectionAttributes, d.driver(), "type"}); attribute != nil && attribute.StringValue != nil {
		return *attribute.StringValue
	}
	return "of " + d.driver()
}

// pool is a driver's devices of the node.
type pool struct {
	driver, name string
	slices       []*resourceapi.ResourceSlice
	generation   int64
	want         int64
}

func (p *pool) complete() bool { return int64(len(p.slices)) >= p.want }

// stock is the devices of a node, and what of them is left. Devices are taken one after
// the other, as they stand in the slices, which is what the scheduler tries first.
type stock struct {
	pools   []*pool
	devices []*device
	// taken devices cannot be had again.
	taken map[structured.DeviceID]bool
	// held devices are shared, and somebody has a part: their counters are paid for.
	held map[structured.DeviceID]bool
	// counters are those left, consumed is the capacity of shared devices that is used.
	counters map[counter]resource.Quantity
	consumed map[structured.DeviceID]map[resourceapi.QualifiedName]resource.Quantity
}

// counter names one of a pool.
type counter struct {
	pool      *pool
	set, name string
}

// newStock reads the offer. Of each pool the newest generation counts, and only when all of
// it is there.
func newStock(o Offer) *stock {
	s := &stock{
		taken: map[structured.DeviceID]bool{}, held: map[structured.DeviceID]bool{},
		counters: map[counter]resource.Quantity{},
		consumed: map[structured.DeviceID]map[resourceapi.QualifiedName]resource.Quantity{},
	}
	s.pools = pools(o.Slices)
	for _, p := range s.pools {
		if p.complete() {
			s.addPool(p)
		}
	}
	for _, d := range s.devices {
		s.use(d, o.Allocated)
	}
	return s
}

// pools gathers slices, in their order.
func pools(slices []*resourceapi.ResourceSlice) []*pool {
	var found []*pool
	type key struct{ driver, name string }
	byName := map[key]*pool{}
	for _, slice := range slices {
		k := key{slice.Spec.Driver, slice.Spec.Pool.Name}
		p := byName[k]
		if p == nil {
			p = &pool{driver: k.driver, name: k.name, generation: slice.Spec.Pool.Generation}
			byName[k] = p
			found = append(found, p)
		}
		switch generation := slice.Spec.Pool.Generation; {
		case generation < p.generation:
			continue
		case generation > p.generation:
			p.slices, p.generation = nil, generation
		}
		p.slices = append(p.slices, slice)
		p.want = slice.Spec.Pool.ResourceSliceCount
	}
	return found
}

func (s *stock) addPool(p *pool) {
	for _, slice := range p.slices {
		for _, set := range slice.Spec.SharedCounters {
			for name, c := range set.Counters {
				s.counters[counter{p, set.Name, name}] = c.Value.DeepCopy()
			}
		}
		for i := range slice.Spec.Devices {
			d := &slice.Spec.Devices[i]
			s.devices = append(s.devices, &device{
				Device: d, slice: slice, pool: p,
				id: structured.MakeDeviceID(p.driver, p.name, d.Name),
			})
		}
	}
}

// use takes what is allocated already.
func (s *stock) use(d *device, state structured.AllocatedState) {
	consumed, partly := state.AggregatedCapacity[d.id]
	for shared := range state.AllocatedSharedDeviceIDs {
		partly = partly || shared.GetDeviceID() == d.id
	}
	if !partly && !state.AllocatedDevices.Has(d.id) {
		return
	}
	s.pay(d)
	if state.AllocatedDevices.Has(d.id) {
		s.taken[d.id] = true
		return
	}
	s.held[d.id] = true
	s.consumed[d.id] = map[resourceapi.QualifiedName]resource.Quantity{}
	for name, value := range consumed {
		s.consumed[d.id][name] = value.DeepCopy()
	}
}

// pay takes a device's counters.
func (s *stock) pay(d *device) {
	for _, consumption := range d.ConsumesCounters {
		for name, c := range consumption.Counters {
			k := counter{d.pool, consumption.CounterSet, name}
			left := s.counters[k].DeepCopy()
			left.Sub(c.Value)
			s.counters[k] = left
		}
	}
}

// clone is a stock that can be drawn on without touching this one.
func (s *stock) clone() *stock {
	c := *s
	c.taken, c.held, c.counters = maps.Clone(s.taken), maps.Clone(s.held), maps.Clone(s.counters)
	c.consumed = make(map[structured.DeviceID]map[resourceapi.QualifiedName]resource.Quantity, len(s.consumed))
	for id, values := range s.consumed {
		c.consumed[id] = maps.Clone(values)
	}
	return &c
}

// take gives the device to a request, which has been found to be possible.
func (s *stock) take(d *device, r request) {
	if r.admin {
		return
	}
	if !s.held[d.id] {
		s.pay(d)
	}
	if !d.shared() {
		s.taken[d.id] = true
		return
	}
	s.held[d.id] = true
	used := s.consumed[d.id]
	if used == nil {
		used = map[resourceapi.QualifiedName]resource.Quantity{}
		s.consumed[d.id] = used
	}
	for name := range d.Capacity {
		sum := used[name].DeepCopy()
		asked := r.consumes(d, name)
		sum.Add(asked)
		used[name] = sum
	}
}

// short is the first counter of which the device would need more than is left.
func (s *stock) short(d *device) *shortage {
	if d.shared() && s.held[d.id] {
		return nil
	}
	for _, consumption := range d.ConsumesCounters {
		for _, name := range sortedKeys(consumption.Counters) {
			need := consumption.Counters[name].Value
			left := s.counters[counter{d.pool, consumption.CounterSet, name}]
			if left.Cmp(need) < 0 {
				return &shortage{set: consumption.CounterSet, counter: name, need: need, left: left}
			}
		}
	}
	return nil
}

// shortage is a counter of which there is not enough.
type shortage struct {
	set, counter string
	need, left   resource.Quantity
}
