package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// board is a GPU of the geometry on which nothing is made yet.
func board(g Geometry) gpu.GPU {
	return gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: g.GPUProfiles()}
}

// visit calls see with every set of partitions that fit a GPU together, the
// empty one included: their indices in all, and which others fit beside them.
func visit(free gpu.Resources, all []gpu.Partition, see func(set []int, fits []bool)) {
	var extend func(from int, free gpu.Resources, set []int)
	extend = func(from int, free gpu.Resources, set []int) {
		fits := make([]bool, len(all))
		for i := range all {
			fits[i] = free.Fits(all[i].Profile, all[i].Start)
			if fits[i] && i >= from {
				extend(i+1, free.Take(all[i].Profile, all[i].Start), append(set[:len(set):len(set)], i))
			}
		}
		see(set, fits)
	}
	extend(0, free, nil)
}

func sets(free gpu.Resources, all []gpu.Partition) (valid, maximal int) {
	visit(free, all, func(_ []int, fits []bool) {
		valid++
		if !slices.Contains(fits, true) {
			maximal++
		}
	})
	return valid, maximal
}

// plain reports whether a profile is one of the basic ones: no engines more or
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
		gpu := board(g)
		all := gpu.Partitions()
		basic := all[:0:0]
		for _, partition := range all {
			if p, _ := g.ProfileByID(partition.Profile.ID); plain(p) {
				basic = append(basic, partition)
			}
		}
		got := counts{placements: len(all)}
		got.valid, got.maximal = sets(gpu.FreeResources(), all)
		_, got.maximalPlain = sets(gpu.FreeResources(), basic)
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
			free := board(g).FreeResources()
			count := 0
			for _, start := range p.Starts {
				if free.Fits(p.GPU(), start) {
					free = free.Take(p.GPU(), start)
					count++
				}
			}
			if count != p.MaxInstances {
				t.Errorf("%d instances of %s fit %s, its maximum is %d", count, p.Name, g.Name, p.MaxInstances)
			}
		}
	}
}

// The counters that are left out are those without which the same sets of
// partitions fit, and none of those that are left can be spared.
func TestCountersAreTheFewestThatDecide(t *testing.T) {
	const seven = "memory-slice-0 memory-slice-1 memory-slice-2 memory-slice-3 memory-slice-4 memory-slice-5 memory-slice-6 ofa-engines memory"
	want := map[string]string{
		"a30-24gb":          "memory-slice-0 memory-slice-1 memory-slice-2 memory-slice-3 ofa-engines memory",
		"rtx-pro-6000-96gb": "memory-slice-0 memory-slice-3 memory-slice-6 memory-slice-9 decoders ofa-engines memory",
	}
	for _, g := range Geometries() {
		board := board(g)
		counters := gpu.Counters(gpu.Shapes([]gpu.GPU{board}, gpu.ByDefault))
		var names []string
		for _, c := range counters {
			names = append(names, c.Name)
		}
		expected, special := want[g.Name]
		if !special {
			expected = seven
		}
		if got := strings.Join(names, " "); got != expected {
			t.Errorf("%s has the counters %q, want %q", g.Name, got, expected)
		}
		uses := usesOf(board, counters)
		if wrong := undecided(board, uses); wrong != "" {
			t.Errorf("%s: resources and counters differ about %s", g.Name, wrong)
		}
		for i := range counters {
			// Memory is there for quotas.
			decides := undecided(board, slices.Delete(slices.Clone(uses), i, i+1)) != ""
			if name := counters[i].Name; decides == (name == "memory") {
				t.Errorf("%s: %s decides: %t", g.Name, name, decides)
			}
		}
	}
}

// uses is what each of a GPU's partitions takes of one counter.
type uses struct {
	total uint64
	of    []uint64
}

func usesOf(g gpu.GPU, counters []gpu.Counter) []uses {
	all := make([]uses, len(counters))
	for i, c := range counters {
		all[i].total = c.Total
		for _, p := range g.Partitions() {
			all[i].of = append(all[i].of, c.UsedBy(p))
		}
	}
	return all
}

// undecided is a set about which counters and resources differ: one that fits, with
// one partition more.
func undecided(g gpu.GPU, counters []uses) (wrong string) {
	all := g.Partitions()
	visit(g.FreeResources(), all, func(set []int, fits []bool) {
		for i := range all {
			if wrong == "" && admits(counters, set, i) != fits[i] {
				wrong = all[i].Name() + " beside"
				for _, j := range set {
					wrong += " " + all[j].Name()
				}
			}
		}
	})
	return wrong
}

func admits(counters []uses, set []int, more int) bool {
	for _, c := range counters {
		used := c.of[more]
		for _, i := range set {
			used += c.of[i]
		}
		if used > c.total {
			return false
		}
	}
	return true
}
