package fleet

import (
	"slices"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
)

// Device is a device, or a share of one, that a claim holds, with the facts of its ResourceSlice.
type Device struct {
	Holding
	// Node is the node of the pool; empty if the pool belongs to several nodes.
	Node   string `json:"node,omitempty"`
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	// Product, Type and Profile are empty if no slice was seen.
	Product string  `json:"product,omitempty"`
	Type    string  `json:"type,omitempty"`
	Profile string  `json:"profile,omitempty"`
	UUID    string  `json:"uuid,omitempty"`
	Taints  []Taint `json:"taints"`
	// Problem is a sentence about missing slices or devices.
	Problem string `json:"problem,omitempty"`
	// Hidden reports that the reader may not list slices, so only the claim is known.
	Hidden bool `json:"-"`
}

// Devices returns the devices that claims hold, in the order of Holdings.
func (f Fleet) Devices() []Device {
	published := f.slicesByPool()
	pools := map[devices.PoolID]*pool{}
	all := []Device{}
	for _, h := range f.Holdings {
		id := h.of.Pool
		if pools[id] == nil {
			pools[id] = f.pool(id, published[id], nil)
		}
		all = append(all, pools[id].held(h))
	}
	return all
}

func (p *pool) held(h Holding) Device {
	held := Device{Holding: h, Node: p.node, Driver: p.id.Driver, Pool: p.id.Name, Taints: []Taint{}, Problem: p.problem, Hidden: p.hidden}
	held.Pods = nil // explain lists the pods of the claim
	at := slices.IndexFunc(p.devices, func(d *devices.Device) bool { return d.Name == h.Device })
	if at < 0 {
		if !p.hidden && held.Problem == "" {
			held.Problem = withdrawn(h.Device)
		}
		return held
	}
	d := p.devices[at]
	alone := &group{}
	p.addTaints(alone, d)
	for _, taint := range alone.gpu.Taints {
		taint.OfDevices = 1
		held.Taints = append(held.Taints, taint)
	}
	held.Product, held.UUID = p.text(d, gpu.AttributeProductName), p.text(d, gpu.AttributeUUID)
	held.Type, held.Profile = p.text(d, gpu.AttributeType), p.text(d, gpu.AttributeProfile)
	return held
}
