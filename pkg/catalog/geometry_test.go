package catalog

import (
	"strings"
	"testing"
)

// placed is a profile at one of its placements.
type placed struct {
	profile   Profile
	placement Placement
}

func (g Geometry) allPlaced() []placed {
	var all []placed
	for _, p := range g.Profiles {
		for _, pl := range p.Placements() {
			all = append(all, placed{p, pl})
		}
	}
	return all
}

// use is what a set of instances takes of a GPU.
type use struct {
	slices                      uint
	memory                      uint64
	sm, ce, dec, enc, jpeg, ofa int
}

func (u use) plus(p placed) use {
	u.slices |= p.mask()
	u.memory += p.profile.MemoryMiB
	u.sm += p.profile.Multiprocessors
	u.ce += p.profile.CopyEngines
	u.dec += p.profile.Decoders
	u.enc += p.profile.Encoders
	u.jpeg += p.profile.JPEGEngines
	u.ofa += p.profile.OFAEngines
	return u
}

func (p placed) mask() uint { return (1<<p.placement.Size - 1) << p.placement.Start }

// total is what a GPU has: of everything, what its largest profile owns.
func (g Geometry) total() use {
	var t use
	for _, p := range g.Profiles {
		t.memory = max(t.memory, p.MemoryMiB)
		t.sm = max(t.sm, p.Multiprocessors)
		t.ce = max(t.ce, p.CopyEngines)
		t.dec = max(t.dec, p.Decoders)
		t.enc = max(t.enc, p.Encoders)
		t.jpeg = max(t.jpeg, p.JPEGEngines)
		t.ofa = max(t.ofa, p.OFAEngines)
	}
	return t
}

// fits says whether p can join what u takes.
func (t use) fits(u use, p placed) bool {
	n := u.plus(p)
	return u.slices&p.mask() == 0 && n.memory <= t.memory && n.sm <= t.sm && n.ce <= t.ce &&
		n.dec <= t.dec && n.enc <= t.enc && n.jpeg <= t.jpeg && n.ofa <= t.ofa
}

// sets counts the sets of instances that fit a GPU together, the empty one
// included, and those to which nothing can be added.
func sets(total use, all []placed) (valid, maximal int) {
	var visit func(from int, u use)
	visit = func(from int, u use) {
		valid++
		full := true
		for i, p := range all {
			if !total.fits(u, p) {
				continue
			}
			full = false
			if i >= from {
				visit(i+1, u.plus(p))
			}
		}
		if full {
			maximal++
		}
	}
	visit(0, use{})
	return valid, maximal
}

// plain says whether a profile is one of the basic ones: no engines more or
// less, no graphics, no double memory.
func plain(p Profile) bool {
	const oneSliceDoubleMemory = 9
	return !strings.ContainsAny(p.Name, "+-") && p.Enum != oneSliceDoubleMemory
}

func TestGeometryCounts(t *testing.T) {
	type counts struct{ placements, valid, maximal, maximalPlain int }
	seven := counts{25, 2319, 239, 19}
	want := map[string]counts{
		"a100-40gb": seven, "a100-80gb": seven, "h100-80gb": seven, "h100-nvl-94gb": seven,
		"h100-96gb": seven, "h200-141gb": seven, "b200-180gb": seven,
		"a30-24gb":          {13, 76, 17, 5},
		"rtx-pro-6000-96gb": {30, 717, 302, 5},
	}
	for _, g := range Geometries() {
		all := g.allPlaced()
		var basic []placed
		for _, p := range all {
			if plain(p.profile) {
				basic = append(basic, p)
			}
		}
		got := counts{placements: len(all)}
		got.valid, got.maximal = sets(g.total(), all)
		_, got.maximalPlain = sets(g.total(), basic)
		if got != want[g.Name] {
			t.Errorf("geometry %s counts %+v, want %+v", g.Name, got, want[g.Name])
		}
	}
}

// TestMaximumFollows checks that the maximum of every profile is what placements
// and engines alone allow on an empty GPU.
func TestMaximumFollows(t *testing.T) {
	for _, g := range Geometries() {
		for _, p := range g.Profiles {
			var u use
			count := 0
			for _, pl := range p.Placements() {
				if candidate := (placed{p, pl}); g.total().fits(u, candidate) {
					u = u.plus(candidate)
					count++
				}
			}
			if count != p.MaxInstances {
				t.Errorf("%d instances of %s fit %s, its maximum is %d", count, p.Name, g.Name, p.MaxInstances)
			}
		}
	}
}
