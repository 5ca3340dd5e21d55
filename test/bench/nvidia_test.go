package bench

import (
	"fmt"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/mica-gpu/mica/test/fixture"
)

// BenchmarkAgainstNVIDIA fills one of 20 nodes with claims of one kind, in our layout and in
// that of NVIDIA's driver by turns, and compares what an allocation takes. Of each
// allocation counts the least of all rounds, because other work on the machine only adds.
// A ratio over its limit fails. The floor is the ratio of our layout with nothing but what the
// claims select by, which no layout of the same devices in the same order can be below.
func BenchmarkAgainstNVIDIA(b *testing.B) {
	// A claim with a selector costs two evaluations of CEL per device before the first that
	// fits, in either layout. A claim by class costs one.
	const selectors, classes = 1.15, 0.72
	whole := claim("gpu.nvidia.com", kinds[0].expressions[0])
	b.Run("claim=whole", func(b *testing.B) { compare(b, whole, whole, 0.25) })
	for _, name := range []string{"1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"} {
		theirs := claim("mig.nvidia.com", profile(name))
		b.Run("claim="+name+"/by=selector", func(b *testing.B) { compare(b, theirs, theirs, selectors) })
		// As deviceClass.profiles of the chart has it.
		ours := claim(name+profileClasses, "")
		b.Run("claim="+name+"/by=class", func(b *testing.B) { compare(b, ours, theirs, classes) })
	}
}

// rounds is how often a node is filled at least: on a busy machine few rounds have a least
// that tells something.
const rounds = 10

func compare(b *testing.B, ours, theirs *resourceapi.ResourceClaim, limit float64) {
	b.Helper()
	node := fixture.Node(b, machine)
	fills := []*fill{
		{cluster: newCluster(layouts[0].pool(b, node), 20), claims: []*resourceapi.ResourceClaim{ours}},
		{cluster: newCluster(layouts[1].pool(b, node), 20), claims: []*resourceapi.ResourceClaim{theirs}},
		{cluster: newCluster(bare(layouts[0].pool(b, node)), 20), claims: []*resourceapi.ResourceClaim{ours}},
	}
	for b.Loop() {
		for range rounds {
			for _, f := range fills {
				f.round(b)
			}
		}
	}
	if len(fills[0].least) != len(fills[1].least) {
		b.Fatalf("%d claims fit in our layout, and %d in NVIDIA's", len(fills[0].least), len(fills[1].least))
	}
	ratio := fills[0].mean() / fills[1].mean()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(fills[0].mean(), "ours-µs/allocation")
	b.ReportMetric(fills[1].mean(), "nvidias-µs/allocation")
	b.ReportMetric(ratio, "ratio")
	b.ReportMetric(fills[2].mean()/fills[1].mean(), "floor")
	b.ReportMetric(limit, "limit")
	if ratio > limit {
		b.Errorf("an allocation takes %.2f times as long as in NVIDIA's layout, limit %.2f", ratio, limit)
	}
}

// fill is a node that is filled again and again.
type fill struct {
	cluster *cluster
	claims  []*resourceapi.ResourceClaim
	// least is the least that each allocation took, from the first on the empty node on.
	least []time.Duration
}

func (f *fill) round(b *testing.B) {
	b.Helper()
	f.cluster.state.AllocatedDevices = sets.New[structured.DeviceID]()
	for step := 0; ; step++ {
		start := time.Now()
		results, err := f.cluster.allocator(b).Allocate(b.Context(), f.cluster.nodes[0], f.claims)
		took := time.Since(start)
		switch {
		case err != nil:
			b.Fatal(err)
		case len(results) == 0:
			return
		case step == len(f.least):
			f.least = append(f.least, took)
		default:
			f.least[step] = min(f.least[step], took)
		}
		f.cluster.take(results[0])
	}
}

func (f *fill) mean() float64 {
	var sum time.Duration
	for _, took := range f.least {
		sum += took
	}
	return float64(sum.Nanoseconds()) / float64(len(f.least)) / 1000
}

// profileClasses is how the chart's classes of profiles end.
const profileClasses = ".mig.nvidia.com"

func profileClass(name string) string {
	return fmt.Sprintf("device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'mig' && device.attributes['gpu.nvidia.com'].profile == '%s'", name)
}
