package inventory

import (
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/fleet"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
)

// DeviceTable shows the devices of a claim.
func DeviceTable(held []fleet.Device) terminal.Table {
	t := terminal.Table{Columns: []terminal.Column{
		{Title: "REQUEST"}, {Title: "DEVICE"}, {Title: "PRODUCT", Spare: 1}, {Title: "SHAPE"}, {Title: "HEALTH"},
	}}
	for _, g := range held {
		t.Rows = append(t.Rows, terminal.Row{
			{Text: g.Request}, {Text: g.Pool + "/" + g.Device}, {Text: product(g.Product)}, {Text: strings.TrimSpace(shape(g.Type, g.Profile, g.Holding.Shared()) + part(g.Holding))}, deviceHealth(g),
		})
	}
	return t
}

func deviceHealth(g fleet.Device) terminal.Cell {
	if g.Hidden {
		return terminal.Cell{Text: "unknown"}
	}
	return health(fleet.GPU{Taints: g.Taints, Problem: g.Problem, Product: g.Product, UUID: g.UUID}, true)
}

// Remarks explain the taints and problems of devices, each once per device.
func Remarks(held []fleet.Device) []string {
	var all []string
	for _, g := range held {
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
