package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
)

// pool is the devices of a pool, by GPU.
type pool struct {
	id   devices.PoolID
	node string
	// devices are those of the newest generation, also if slices are missing.
	devices []*devices.Device
	// stock has the free part of them; nil: unknown.
	stock *devices.Stock
	rules []*resourceapi.DeviceTaintRule
	// holdings are by the names of devices.
	holdings map[string][]Holding
	// problem is a sentence about the whole pool.
	problem string
	// hidden reports that slices were not seen, known that slices and all claims were.
	hidden, known bool
	groups        []*group
	byKey         map[string]*group
}

// group is the devices of one GPU.
type group struct {
	devices []*devices.Device
	gpu     GPU
}

func (f Fleet) pool(id devices.PoolID, published []*resourceapi.ResourceSlice, held []Holding) *pool {
	p := &pool{id: id, holdings: map[string][]Holding{}, hidden: f.SlicesHidden, known: !f.SlicesHidden && f.OfNamespace == "", byKey: map[string]*group{}}
	used := devices.Use{}
	for _, h := range held {
		p.holdings[h.Device] = append(p.holdings[h.Device], h)
		used.Add(h.of)
	}
	var rules []resourceapi.DeviceTaintRule
	for i := range f.Rules {
		if devices.RuleReaches(&f.Rules[i], id) {
			p.rules, rules = append(p.rules, &f.Rules[i]), append(rules, f.Rules[i])
		}
	}
	for _, newest := range devices.Pools(devices.WithTaintRules(published, rules)) {
		p.read(newest, used)
	}
	return p
}

func (p *pool) read(newest devices.Pool, used devices.Use) {
	p.node = ptr.Deref(newest.Slices[0].Spec.NodeName, "")
	switch {
	case !newest.Complete():
		p.problem = fmt.Sprintf("%d of %d ResourceSlices of pool %s are there, so the scheduler allocates none of its devices: see the log of the node's plugin", len(newest.Slices), newest.Announced(), p.id.Name)
	case p.known:
		p.stock = devices.NewStock(newest.Slices, used)
		p.devices = p.stock.Devices
		return
	}
	p.devices = newest.Devices()
}

// gpus returns the GPUs of published devices, and of devices that only a claim still names.
func (p *pool) gpus() []GPU {
	for _, d := range p.devices {
		g := p.groupOf(d)
		g.devices = append(g.devices, d)
		g.gpu.Devices = append(g.gpu.Devices, d.Name)
	}
	for _, g := range p.groups {
		p.describe(g)
	}
	for _, name := range p.unpublished() {
		p.addUnpublished(name)
	}
	found := make([]GPU, len(p.groups))
	for i, g := range p.groups {
		found[i] = g.gpu
	}
	return found
}

// groupOf returns the group of the device's GPU.
func (p *pool) groupOf(d *devices.Device) *group {
	key := cmp.Or(p.raw(d, gpu.AttributeParentUUID), p.raw(d, gpu.AttributeUUID), boardName(d.Name))
	g := p.byKey[key]
	if g == nil {
		g = p.addGroup(key, boardName(d.Name))
	}
	return g
}

func (p *pool) addGroup(key, name string) *group {
	g := &group{gpu: GPU{Node: p.node, Driver: p.id.Driver, Pool: p.id.Name, Name: name, Problem: p.problem}}
	g.gpu.Uses, g.gpu.Claims, g.gpu.Taints = []Use{}, []Holding{}, []Taint{}
	if p.known {
		g.gpu.Room = []Room{}
	}
	p.groups, p.byKey[key] = append(p.groups, g), g
	return g
}

// raw returns an attribute of a slice that may be compact. It suffices to distinguish devices of the pool.
func (p *pool) raw(d *devices.Device, name string) string {
	attribute, _ := devices.Lookup(d.Attributes, p.id.Driver, p.id.Driver, name)
	return ptr.Deref(attribute.StringValue, "")
}

func (p *pool) text(d *devices.Device, name string) string {
	attribute := d.AttributeAt(devices.Field{Section: devices.SectionAttributes, Domain: p.id.Driver, Name: name})
	if attribute == nil {
		return ""
	}
	return ptr.Deref(attribute.StringValue, "")
}

func (p *pool) capacity(d *devices.Device, name string) int64 {
	capacity, _ := devices.Lookup(d.Capacity, p.id.Driver, p.id.Driver, name)
	return capacity.Value.Value()
}

// describe fills in a GPU from its devices.
func (p *pool) describe(g *group) {
	first := g.devices[0]
	g.gpu.Product = p.text(first, gpu.AttributeProductName)
	g.gpu.UUID = cmp.Or(p.text(first, gpu.AttributeParentUUID), p.text(first, gpu.AttributeUUID))
	g.gpu.Memory.TotalBytes = p.memory(g.devices)
	for _, d := range g.devices {
		p.addHoldings(g, d.Name, d)
		repelled := d.Repels(nil) != nil
		p.addTaints(g, d)
		if p.stock != nil && !repelled && p.stock.Has(d) {
			p.addRoom(g, d)
		}
	}
	for i := range g.gpu.Taints {
		g.gpu.Taints[i].OfDevices = len(g.devices)
	}
}

// memory returns the memory of the GPU. Partitions that exist add up to it; partitions that could be
// created overlap.
func (p *pool) memory(all []*devices.Device) int64 {
	var largest, sum int64
	cut := true
	for _, d := range all {
		has := p.capacity(d, gpu.CapacityMemory)
		largest, sum = max(largest, has), sum+has
		cut = cut && len(d.ConsumesCounters) == 0 && !d.Shared() && p.raw(d, gpu.AttributeParentUUID) != ""
	}
	if cut {
		return sum
	}
	return largest
}

// addHoldings adds the holdings of a device to its GPU. d is nil if no slice has the device.
func (p *pool) addHoldings(g *group, name string, d *devices.Device) {
	use, taken := Use{Device: name}, false
	if d != nil {
		use.Type, use.Profile = p.text(d, gpu.AttributeType), p.text(d, gpu.AttributeProfile)
		if use.Shared = d.Shared(); use.Shared {
			use.OfParts = p.capacity(d, p.parts(d))
		}
	}
	for _, h := range p.holdings[name] {
		g.gpu.Claims = append(g.gpu.Claims, h)
		if h.Admin {
			continue
		}
		taken = true
		g.gpu.Memory.UsedBytes += h.MemoryBytes
		switch {
		case d == nil:
		case h.Shared():
			use.Parts += p.partsOf(h, d)
		default:
			g.gpu.Memory.UsedBytes += p.capacity(d, gpu.CapacityMemory)
		}
	}
	if taken {
		g.gpu.Uses = append(g.gpu.Uses, use)
	}
}

// parts returns the capacity that counts the shares of a device.
func (p *pool) parts(d *devices.Device) string {
	if _, counted := devices.Lookup(d.Capacity, p.id.Driver, p.id.Driver, gpu.CapacityCores); counted {
		return gpu.CapacityCores
	}
	return gpu.CapacityShares
}

// partsOf returns the parts of the device that a claim holds.
func (p *pool) partsOf(h Holding, d *devices.Device) int64 {
	if p.parts(d) == gpu.CapacityCores {
		return h.Cores
	}
	return h.Shares
}

// addRoom keeps one entry per shape and profile. Placements of a partition overlap, so they are not counted.
func (p *pool) addRoom(g *group, d *devices.Device) {
	room := Room{Type: p.text(d, gpu.AttributeType), Profile: p.text(d, gpu.AttributeProfile)}
	if room.Shared = d.Shared(); room.Shared {
		room.OfParts = p.capacity(d, p.parts(d))
		room.Parts = room.OfParts
		for _, h := range p.holdings[d.Name] {
			room.Parts -= p.partsOf(h, d)
		}
	}
	at := slices.IndexFunc(g.gpu.Room, func(known Room) bool { return known.Type == room.Type && known.Profile == room.Profile })
	if at < 0 {
		g.gpu.Room = append(g.gpu.Room, room)
		return
	}
	g.gpu.Room[at].Parts = max(g.gpu.Room[at].Parts, room.Parts)
}

// addTaints adds the taints of a device to its GPU. Taints of rules come last, in the order of the rules.
func (p *pool) addTaints(g *group, d *devices.Device) {
	var of []string
	for _, rule := range p.rules {
		if devices.RuleTaints(rule, d.ID) {
			of = append(of, rule.Name)
		}
	}
	own := len(d.Taints) - len(of)
	for i, taint := range d.Taints {
		rule := ""
		if i >= own {
			rule = of[i-own]
		}
		at := slices.IndexFunc(g.gpu.Taints, func(known Taint) bool {
			return known.Key == taint.Key && known.Value == taint.Value && known.Effect == taint.Effect && known.Rule == rule
		})
		if at < 0 {
			why, remedy := slice.Meaning(taint.Key)
			at = len(g.gpu.Taints)
			g.gpu.Taints = append(g.gpu.Taints, Taint{Key: taint.Key, Value: taint.Value, Effect: taint.Effect, Since: taint.TimeAdded, Rule: rule, Why: why, Remedy: remedy})
		}
		g.gpu.Taints[at].Devices++
	}
}

// unpublished returns the devices that only claims name, sorted.
func (p *pool) unpublished() []string {
	published := make(map[string]bool, len(p.devices))
	for _, d := range p.devices {
		published[d.Name] = true
	}
	var names []string
	for name := range p.holdings {
		if !published[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (p *pool) addUnpublished(name string) {
	board := boardName(name)
	var g *group
	if at := slices.IndexFunc(p.groups, func(g *group) bool { return g.gpu.Name == board }); at >= 0 {
		g = p.groups[at]
	} else {
		g = p.addGroup("unpublished "+board, board)
	}
	p.addHoldings(g, name, nil)
	if !p.hidden {
		g.gpu.Problem = cmp.Or(g.gpu.Problem, withdrawn(name))
	}
}

// withdrawn describes a device that only a claim still names.
func withdrawn(device string) string {
	return fmt.Sprintf("no ResourceSlice has device %s any more, which a claim holds: see the log of the node's plugin for why it was withdrawn", device)
}

// boardName returns the GPU in the name of a device: gpu-0 of gpu-0-mig-1g10gb-19-0, for Mica's driver
// and NVIDIA's.
func boardName(device string) string {
	parts := strings.SplitN(device, "-", 3)
	if len(parts) < 3 || strings.Trim(parts[1], "0123456789") != "" {
		return device
	}
	return parts[0] + "-" + parts[1]
}
