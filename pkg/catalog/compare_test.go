package catalog

import (
	"slices"
	"testing"

	"github.com/mica-gpu/mica/pkg/gpu"
)

func TestDifferences(t *testing.T) {
	const product = "NVIDIA H100 80GB HBM3"
	board, _ := BoardByProductName(product)
	for name, tc := range map[string]struct {
		product string
		change  func(profiles []gpu.Profile) []gpu.Profile
		want    []string
	}{
		"none":             {product, func(p []gpu.Profile) []gpu.Profile { return p }, nil},
		"in another order": {product, func(p []gpu.Profile) []gpu.Profile { slices.Reverse(p); return p }, nil},
		"memory and an engine": {product, func(p []gpu.Profile) []gpu.Profile {
			p[0].MemoryBytes, p[0].Decoders = 9728<<20, 0
			return p
		}, []string{"profile 1g.10gb (ID 19) has MiB of memory 9728, predicted was 9984", "profile 1g.10gb (ID 19) has decoders 0, predicted was 1"}},
		"placements": {product, func(p []gpu.Profile) []gpu.Profile { p[3].Starts = []int{0, 2}; return p },
			[]string{"profile 2g.20gb (ID 14) has placements [0 2], predicted was [0 2 4]"}},
		"one more and one less": {product, func(p []gpu.Profile) []gpu.Profile { p[6].ID = 32; return p },
			[]string{"profile 7g.80gb (ID 32) is not predicted", "profile 7g.80gb (ID 0) is predicted and not listed"}},
		"nothing is listed":                  {product, func([]gpu.Profile) []gpu.Profile { return nil }, nil},
		"a product that is not known":        {"NVIDIA H100 81GB", func(p []gpu.Profile) []gpu.Profile { return p[:1] }, nil},
		"a product without MIG in the table": {"NVIDIA L4", func(p []gpu.Profile) []gpu.Profile { return p }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Differences(tc.product, tc.change(board.MIG.GPUProfiles())); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
