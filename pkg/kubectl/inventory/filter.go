package inventory

import (
	"slices"
	"strings"
)

// Filter chooses GPUs. Its zero value chooses all.
type Filter struct {
	// Nodes are names; none: all.
	Nodes []string
	// Product is a part of the product's name, in any case.
	Product string
	// Namespace is the one whose claims have something of the GPU.
	Namespace string
	// Free chooses those of which a claim that tolerates no taint could get something.
	Free bool
}

// Only has the GPUs that the filter chooses.
func (i Inventory) Only(f Filter) Inventory {
	kept := []GPU{}
	for _, g := range i.GPUs {
		if f.chooses(&g) {
			kept = append(kept, g)
		}
	}
	i.GPUs = kept
	return i
}

func (f Filter) chooses(g *GPU) bool {
	if len(f.Nodes) > 0 && !slices.Contains(f.Nodes, g.Node) && !slices.Contains(f.Nodes, g.Pool) {
		return false
	}
	if !strings.Contains(strings.ToLower(g.Product), strings.ToLower(f.Product)) {
		return false
	}
	held := func(h Hold) bool { return h.Namespace == f.Namespace }
	if f.Namespace != "" && !slices.ContainsFunc(g.Claims, held) {
		return false
	}
	return !f.Free || len(g.Room) > 0
}
