package inventory

import (
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// Given is a device that a claim has, or a share of one, and how it is.
type Given struct {
	Hold
	// Node is that of the pool, empty for a pool of no node in particular.
	Node   string `json:"node,omitempty"`
	Driver string `json:"driver"`
	Pool   string `json:"pool"`
	// Product, Type and Profile are empty where the device is not seen.
	Product string  `json:"product,omitempty"`
	Type    string  `json:"type,omitempty"`
	Profile string  `json:"profile,omitempty"`
	UUID    string  `json:"uuid,omitempty"`
	Taints  []Taint `json:"taints"`
	// Problem is a sentence about what is not as it should be.
	Problem string `json:"problem,omitempty"`
	// hidden tells that slices were not seen, and so nothing but what the claim says.
	hidden bool
}

// GivenOf are the devices that claims have, in the order of the claims, each as its slice has it.
func GivenOf(seen Seen) []Given {
	published := slicesByPool(seen.Slices)
	readers := map[devices.PoolID]*poolReader{}
	given := []Given{}
	for _, h := range seen.Holdings {
		id := h.Device.Pool
		r := readers[id]
		if r == nil {
			r = newPoolReader(id, published[id], nil, seen)
			readers[id] = r
		}
		given = append(given, r.given(h))
	}
	return given
}

func (r *poolReader) given(h Holding) Given {
	g := Given{Hold: h.hold(), Node: r.node, Driver: r.id.Driver, Pool: r.id.Name, Taints: []Taint{}, Problem: r.problem, hidden: r.hidden}
	g.Pods = nil // those of the claim
	at := slices.IndexFunc(r.devices, func(d *devices.Device) bool { return d.Name == h.Device.Name })
	switch {
	case at < 0 && !r.hidden && g.Problem == "":
		g.Problem = withdrawn(h.Device.Name)
		fallthrough
	case at < 0:
		return g
	}
	d := r.devices[at]
	alone := &group{}
	r.addTaints(alone, d)
	for _, taint := range alone.gpu.Taints {
		taint.OfDevices = 1
		g.Taints = append(g.Taints, taint)
	}
	g.Product, g.UUID = r.text(d, gpu.AttributeProductName), r.text(d, gpu.AttributeUUID)
	g.Type, g.Profile = r.text(d, gpu.AttributeType), r.text(d, gpu.AttributeProfile)
	return g
}

// GivenTable is the devices of a claim for people.
func GivenTable(given []Given) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "REQUEST", Key: true}, {Title: "DEVICE", Key: true}, {Title: "PRODUCT", Spare: 1}, {Title: "SHAPE"}, {Title: "HEALTH"},
	}}
	for _, g := range given {
		t.Rows = append(t.Rows, terminal.Row{
			{Text: g.Request}, {Text: g.Pool + "/" + g.Device}, {Text: product(g.Product)}, {Text: strings.TrimSpace(shape(g.Type, g.Profile) + g.part())}, g.health(),
		})
	}
	return t
}

func (g Given) health() terminal.Cell {
	if g.hidden {
		return terminal.Cell{Text: "unknown"}
	}
	return health(GPU{Taints: g.Taints, Problem: g.Problem, Product: g.Product, UUID: g.UUID}, true)
}

// Remarks say of devices what their taints mean and what to do about them, each once per device.
func Remarks(given []Given) []string {
	var all []string
	for _, g := range given {
		var texts []string
		for _, taint := range g.Taints {
			if taint.Why != "" {
				texts = append(texts, taint.Why+": "+taint.Remedy)
			}
		}
		if g.Problem != "" {
			texts = append(texts, g.Problem)
		}
		for _, text := range texts {
			if remark := g.Pool + "/" + g.Device + ": " + text; !slices.Contains(all, remark) {
				all = append(all, remark)
			}
		}
	}
	return all
}
