package gpu

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/utils/ptr"
)

func TestSortByLocality(t *testing.T) {
	node0, node1 := ptr.To(0), ptr.To(1)
	for name, tc := range map[string]struct {
		gpus []GPU
		want []int // minors
	}{
		"nothing": {},
		"by minor when all else is equal": {
			gpus: []GPU{{Minor: 2}, {Minor: 0}, {Minor: 1}},
			want: []int{0, 1, 2},
		},
		"NUMA node before PCIe root before minor": {
			gpus: []GPU{
				{Minor: 0, NUMANode: node1, PCIeRoot: "pci0000:80"},
				{Minor: 1, NUMANode: node0, PCIeRoot: "pci0000:40"},
				{Minor: 2, NUMANode: node1, PCIeRoot: "pci0000:80"},
				{Minor: 3, NUMANode: node0, PCIeRoot: "pci0000:10"},
			},
			want: []int{3, 1, 0, 2},
		},
		"unknown NUMA nodes come last": {
			gpus: []GPU{{Minor: 0}, {Minor: 1, NUMANode: node1}, {Minor: 2}, {Minor: 3, NUMANode: node0}},
			want: []int{3, 1, 0, 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tc.gpus)
			got := minors(SortByLocality(tc.gpus))
			if !slices.Equal(got, tc.want) {
				t.Errorf("got minors %v, want %v", got, tc.want)
			}
			if !slices.Equal(minors(tc.gpus), minors(before)) {
				t.Errorf("the input was changed to %v", minors(tc.gpus))
			}
		})
	}
}

func TestGroupByNVLink(t *testing.T) {
	gpus := []GPU{{Minor: 5, UUID: "a"}, {Minor: 2, UUID: "b"}, {Minor: 9, UUID: "c"}, {Minor: 7, UUID: "d"}}
	for name, tc := range map[string]struct {
		links map[string]Link
		want  []string
	}{
		"no links":                       {nil, []string{"-", "-", "-", "-"}},
		"a pair has the smaller minor":   {map[string]Link{"a": {Peers: []string{"b"}}, "b": {Peers: []string{"a"}}}, []string{"2", "2", "-", "-"}},
		"one side's word is enough":      {map[string]Link{"a": {Peers: []string{"c"}}}, []string{"5", "-", "5", "-"}},
		"a chain is one group":           {map[string]Link{"a": {Peers: []string{"c"}}, "c": {Peers: []string{"d"}}}, []string{"5", "-", "5", "5"}},
		"two pairs are two groups":       {map[string]Link{"a": {Peers: []string{"b"}}, "c": {Peers: []string{"d"}}}, []string{"2", "2", "7", "7"}},
		"a switch joins":                 {map[string]Link{"a": {Switched: true}, "c": {Switched: true}, "d": {Switched: true}}, []string{"5", "-", "5", "5"}},
		"alone on a switch":              {map[string]Link{"c": {Switched: true}}, []string{"-", "-", "9", "-"}},
		"a switch and a direct neighbor": {map[string]Link{"a": {Switched: true}, "c": {Switched: true}, "b": {Peers: []string{"a"}}}, []string{"2", "2", "2", "-"}},
		"a peer that is not here":        {map[string]Link{"a": {Peers: []string{"elsewhere"}}}, []string{"-", "-", "-", "-"}},
		"a link to itself":               {map[string]Link{"a": {Peers: []string{"a"}}}, []string{"-", "-", "-", "-"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := groups(GroupByNVLink(gpus, tc.links)); !slices.Equal(got, tc.want) {
				t.Errorf("got groups %q, want %q", got, tc.want)
			}
		})
	}
}

func TestGroupByNVLinkForgetsOldGroups(t *testing.T) {
	gpus := []GPU{{Minor: 0, UUID: "a", NVLinkGroup: ptr.To(7)}}
	if got := groups(GroupByNVLink(gpus, nil)); got[0] != "-" {
		t.Errorf("got group %s for a GPU without links", got[0])
	}
	if *gpus[0].NVLinkGroup != 7 {
		t.Error("the input was changed")
	}
}

// The forest is held against the plain definition: two GPUs are connected when
// there is a path of links between them.
func TestGroupByNVLinkAgreesWithTransitiveClosure(t *testing.T) {
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 1))
		gpus, links := randomMachine(random)
		grouped := GroupByNVLink(gpus, links)
		connected := closure(gpus, links)
		for i := range gpus {
			smallest, alone := gpus[i].Minor, true
			for j := range gpus {
				if i != j && connected[i][j] {
					smallest, alone = min(smallest, gpus[j].Minor), false
				}
			}
			want := fmt.Sprint(smallest)
			if alone && !links[gpus[i].UUID].Switched {
				want = "-"
			}
			if got := groups(grouped)[i]; got != want {
				t.Fatalf("seed %d: GPU %s has group %s, want %s; links %v", seed, gpus[i].UUID, got, want, links)
			}
		}
	}
}

func randomMachine(random *rand.Rand) ([]GPU, map[string]Link) {
	gpus := make([]GPU, 1+random.IntN(9))
	minors := random.Perm(16)
	for i := range gpus {
		gpus[i] = GPU{Minor: minors[i], UUID: fmt.Sprint("GPU-", i)}
	}
	links := map[string]Link{}
	for _, g := range gpus {
		var link Link
		for random.IntN(3) == 0 {
			link.Peers = append(link.Peers, fmt.Sprint("GPU-", random.IntN(len(gpus)+1)))
		}
		link.Switched = random.IntN(4) == 0
		links[g.UUID] = link
	}
	return gpus, links
}

// closure is Warshall's.
func closure(gpus []GPU, links map[string]Link) [][]bool {
	reach := make([][]bool, len(gpus))
	for i, a := range gpus {
		reach[i] = make([]bool, len(gpus))
		for j, b := range gpus {
			reach[i][j] = slices.Contains(links[a.UUID].Peers, b.UUID) ||
				slices.Contains(links[b.UUID].Peers, a.UUID) ||
				links[a.UUID].Switched && links[b.UUID].Switched
		}
	}
	for k := range gpus {
		for i := range gpus {
			for j := range gpus {
				reach[i][j] = reach[i][j] || reach[i][k] && reach[k][j]
			}
		}
	}
	return reach
}

func minors(gpus []GPU) []int {
	var found []int
	for _, g := range gpus {
		found = append(found, g.Minor)
	}
	return found
}

func groups(gpus []GPU) []string {
	var found []string
	for _, g := range gpus {
		text := "-"
		if g.NVLinkGroup != nil {
			text = fmt.Sprint(*g.NVLinkGroup)
		}
		found = append(found, text)
	}
	return found
}
