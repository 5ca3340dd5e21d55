package inventory

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

// poolReader finds the GPUs of a pool.
type poolReader struct {
	id   devices.PoolID
	node string
	// devices are all that were published last, also of a pool that is not complete.
	devices []*devices.Device
	// stock has what is left of them, nil where nobody knows.
	stock *devices.Stock
	rules []*resourceapi.DeviceTaintRule
	held  map[string][]Holding
	// problem is that of the whole pool.
	problem string
	// hidden tells that slices were not seen at all, known that slices and all claims were.
	hidden, known bool
	groups        []*group
	byKey         map[string]*group
}

// group is the devices of one GPU.
type group struct {
	devices []*devices.Device
	gpu     GPU
}

func newPoolReader(id devices.PoolID, published []*resourceapi.ResourceSlice, held []Holding, seen Seen) *poolReader {
	r := &poolReader{id: id, held: map[string][]Holding{}, hidden: seen.SlicesHidden, known: !seen.SlicesHidden && seen.OfNamespace == "", byKey: map[string]*group{}}
	used := devices.Use{}
	for _, h := range held {
		r.held[h.Device.Name] = append(r.held[h.Device.Name], h)
		used.Add(h.Device, &h.result)
	}
	var rules []resourceapi.DeviceTaintRule
	for i := range seen.Rules {
		if devices.RuleReaches(&seen.Rules[i], id) {
			r.rules, rules = append(r.rules, &seen.Rules[i]), append(rules, seen.Rules[i])
		}
	}
	for _, pool := range devices.Pools(devices.WithTaintRules(published, rules)) {
		r.read(pool, used)
	}
	return r
}

func (r *poolReader) read(pool devices.Pool, used devices.Use) {
	r.node = ptr.Deref(pool.Slices[0].Spec.NodeName, "")
	switch {
	case !pool.Complete():
		r.problem = fmt.Sprintf("%d of %d ResourceSlices of pool %s are there, so the scheduler gives none of its devices: see the log of the node's plugin", len(pool.Slices), pool.Announced(), r.id.Name)
	case r.known:
		r.stock = devices.NewStock(pool.Slices, used)
		r.devices = r.stock.Devices
		return
	}
	r.devices = pool.Devices()
}

// gpus are those of published devices, and of devices that only a claim still names.
func (r *poolReader) gpus() []GPU {
	for _, d := range r.devices {
		g := r.groupOf(d)
		g.devices = append(g.devices, d)
		g.gpu.Devices = append(g.gpu.Devices, d.Name)
	}
	for _, g := range r.groups {
		r.describe(g)
	}
	for _, name := range r.unpublished() {
		r.addUnpublished(name)
	}
	found := make([]GPU, len(r.groups))
	for i, g := range r.groups {
		found[i] = g.gpu
	}
	return found
}

// groupOf is that of the GPU which the device is, or is a part of.
func (r *poolReader) groupOf(d *devices.Device) *group {
	key := cmp.Or(r.raw(d, gpu.AttributeParentUUID), r.raw(d, gpu.AttributeUUID), boardName(d.Name))
	g := r.byKey[key]
	if g == nil {
		g = r.addGroup(key, boardName(d.Name))
	}
	return g
}

func (r *poolReader) addGroup(key, name string) *group {
	g := &group{gpu: GPU{Node: r.node, Driver: r.id.Driver, Pool: r.id.Name, Name: name, Problem: r.problem}}
	g.gpu.Uses, g.gpu.Claims, g.gpu.Taints = []Use{}, []Hold{}, []Taint{}
	if r.known {
		g.gpu.Room = []Room{}
	}
	r.groups, r.byKey[key] = append(r.groups, g), g
	return g
}

// raw is an attribute as it stands in a slice, which may be compact: good for telling devices apart.
func (r *poolReader) raw(d *devices.Device, name string) string {
	attribute, _ := devices.Lookup(d.Attributes, r.id.Driver, r.id.Driver, name)
	return ptr.Deref(attribute.StringValue, "")
}

func (r *poolReader) text(d *devices.Device, name string) string {
	attribute := d.AttributeAt(devices.Field{Section: devices.SectionAttributes, Domain: r.id.Driver, Name: name})
	if attribute == nil {
		return ""
	}
	return ptr.Deref(attribute.StringValue, "")
}

func (r *poolReader) capacity(d *devices.Device, name string) int64 {
	capacity, _ := devices.Lookup(d.Capacity, r.id.Driver, r.id.Driver, name)
	return capacity.Value.Value()
}

// describe fills in what is known of a GPU by its devices.
func (r *poolReader) describe(g *group) {
	first := g.devices[0]
	g.gpu.Product = r.text(first, gpu.AttributeProductName)
	g.gpu.UUID = cmp.Or(r.text(first, gpu.AttributeParentUUID), r.text(first, gpu.AttributeUUID))
	g.gpu.Memory.TotalBytes = r.memory(g.devices)
	for _, d := range g.devices {
		if held := r.held[d.Name]; len(held) > 0 {
			r.addHeld(g, d, held)
		}
		repelled := d.Repels(nil) != nil
		r.addTaints(g, d)
		if r.stock != nil && !repelled && r.stock.Has(d) {
			r.addRoom(g, d)
		}
	}
	for i := range g.gpu.Taints {
		g.gpu.Taints[i].OfDevices = len(g.devices)
	}
}

// memory is that of all of the GPU: partitions that were cut beforehand are parts of it, and those
// that could be cut overlap.
func (r *poolReader) memory(all []*devices.Device) int64 {
	var largest, sum int64
	cut := true
	for _, d := range all {
		has := r.capacity(d, gpu.CapacityMemory)
		largest, sum = max(largest, has), sum+has
		cut = cut && len(d.ConsumesCounters) == 0 && !d.Shared() && r.raw(d, gpu.AttributeParentUUID) != ""
	}
	if cut {
		return sum
	}
	return largest
}

func (r *poolReader) addHeld(g *group, d *devices.Device, held []Holding) {
	use := Use{Device: d.Name, Type: r.text(d, gpu.AttributeType), Profile: r.text(d, gpu.AttributeProfile)}
	taken := false
	for _, h := range held {
		g.gpu.Claims = append(g.gpu.Claims, h.hold())
		if !h.Takes() {
			continue
		}
		taken = true
		if h.result.ShareID == nil {
			g.gpu.Memory.UsedBytes += r.capacity(d, gpu.CapacityMemory)
			continue
		}
		g.gpu.Memory.UsedBytes += h.consumed(gpu.CapacityMemory)
		use.Parts += h.consumed(r.parts(d))
	}
	if !taken {
		return
	}
	if d.Shared() {
		use.OfParts = r.capacity(d, r.parts(d))
	}
	g.gpu.Uses = append(g.gpu.Uses, use)
}

// parts is the capacity by which a device in shares is counted.
func (r *poolReader) parts(d *devices.Device) string {
	if _, counted := devices.Lookup(d.Capacity, r.id.Driver, r.id.Driver, gpu.CapacityCores); counted {
		return gpu.CapacityCores
	}
	return gpu.CapacityShares
}

// addRoom keeps one entry per shape and profile: places of a partition overlap, so their number says
// nothing.
func (r *poolReader) addRoom(g *group, d *devices.Device) {
	room := Room{Type: r.text(d, gpu.AttributeType), Profile: r.text(d, gpu.AttributeProfile)}
	if d.Shared() {
		room.OfParts = r.capacity(d, r.parts(d))
		room.Parts = room.OfParts
		for _, h := range r.held[d.Name] {
			room.Parts -= h.consumed(r.parts(d))
		}
	}
	at := slices.IndexFunc(g.gpu.Room, func(known Room) bool { return known.Type == room.Type && known.Profile == room.Profile })
	if at < 0 {
		g.gpu.Room = append(g.gpu.Room, room)
		return
	}
	g.gpu.Room[at].Parts = max(g.gpu.Room[at].Parts, room.Parts)
}

// addTaints counts the taints of a device to those of its GPU. Those of rules come last, in the order
// of the rules.
func (r *poolReader) addTaints(g *group, d *devices.Device) {
	var of []string
	for _, rule := range r.rules {
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

// unpublished are the devices that only claims name, in order.
func (r *poolReader) unpublished() []string {
	published := make(map[string]bool, len(r.devices))
	for _, d := range r.devices {
		published[d.Name] = true
	}
	var names []string
	for name := range r.held {
		if !published[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (r *poolReader) addUnpublished(name string) {
	board := boardName(name)
	at := slices.IndexFunc(r.groups, func(g *group) bool { return g.gpu.Name == board })
	if at < 0 {
		r.addGroup("unpublished "+board, board)
		at = len(r.groups) - 1
	}
	g := r.groups[at]
	use, taken := Use{Device: name}, false
	for _, h := range r.held[name] {
		g.gpu.Claims = append(g.gpu.Claims, h.hold())
		if h.Takes() {
			taken = true
			g.gpu.Memory.UsedBytes += h.consumed(gpu.CapacityMemory)
		}
	}
	if taken {
		g.gpu.Uses = append(g.gpu.Uses, use)
	}
	if !r.hidden {
		g.gpu.Problem = cmp.Or(g.gpu.Problem, withdrawn(name))
	}
}

// withdrawn is said of a device that only a claim still names.
func withdrawn(device string) string {
	return fmt.Sprintf("no ResourceSlice has device %s any more, which a claim holds: see the log of the node's plugin for why it was withdrawn", device)
}

// boardName is the name of the GPU in the name of a device: gpu-0 of gpu-0-mig-1g10gb-19-0, as
// Mica's driver and NVIDIA's have it.
func boardName(device string) string {
	parts := strings.SplitN(device, "-", 3)
	if len(parts) < 3 || strings.Trim(parts[1], "0123456789") != "" {
		return device
	}
	return parts[0] + "-" + parts[1]
}
