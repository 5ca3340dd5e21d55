// Package inventory prints the GPUs of a fleet, who holds them and how busy they are. It reads nothing.
package inventory

import (
	"slices"
	"strings"

	"github.com/mica-gpu/mica/pkg/fleet"
)

// Inventory is the output of kubectl gpu list as JSON and YAML.
type Inventory struct {
	GPUs []fleet.GPU `json:"gpus"`
	// NotSeen has a sentence for each thing that the user may not see.
	NotSeen []string `json:"notSeen,omitempty"`
}

// Filter selects GPUs. The zero value selects all.
type Filter struct {
	// Nodes are names of nodes; none: all.
	Nodes []string
	// Product is a part of the product's name, in any case.
	Product string
	// Namespace selects GPUs that claims of the namespace hold.
	Namespace string
	// Free selects GPUs with room for a claim that tolerates no taint.
	Free bool
}

// Select returns the GPUs that the filter selects.
func (f Filter) Select(gpus []fleet.GPU) []fleet.GPU {
	selected := []fleet.GPU{}
	for _, g := range gpus {
		if f.selects(g) {
			selected = append(selected, g)
		}
	}
	return selected
}

func (f Filter) selects(g fleet.GPU) bool {
	if len(f.Nodes) > 0 && !slices.Contains(f.Nodes, g.Node) && !slices.Contains(f.Nodes, g.Pool) {
		return false
	}
	if !strings.Contains(strings.ToLower(g.Product), strings.ToLower(f.Product)) {
		return false
	}
	ofNamespace := func(h fleet.Holding) bool { return h.Namespace == f.Namespace }
	if f.Namespace != "" && !slices.ContainsFunc(g.Claims, ofNamespace) {
		return false
	}
	return !f.Free || len(g.Room) > 0
}
