package usage

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// BenchmarkUsage asks for 1,000 workloads on 1,000 nodes, each with a GPU and a share of another,
// as fast as it can while all nodes are asked anew in the background. A pool has what 8 H100 are
// published as. It reports the first questions of all, which wait for the plugins, and what a
// hundredth of the later ones take longer than.
func BenchmarkUsage(b *testing.B) {
	const count = 1000
	cache := newIndexed(b)
	p := newPlugins(b)
	about := strings.Repeat("# HELP go_something What a plugin tells about itself.\n# TYPE go_something gauge\ngo_something{label=\"value\"} 12345\n", 200)
	p.respond(func(w http.ResponseWriter, _ *http.Request) {
		servePage(w, append([]string{about}, page(series("gpu-0", 0.5, 40*gi, 80*gi, time.Now()), series("gpu-1-timeslice", 1, 20*gi, 80*gi, time.Now()))...)...)
	})
	ip, port := p.at(b)
	workloads := make([]workload.State, count)
	for i := range workloads {
		node := fmt.Sprintf("n%d", i)
		workloads[i] = onNode(b, cache, node)
		cache.add(b, pluginPod(node, ip, port))
	}
	o := cache.options()
	o.Clock = clock.RealClock{}
	m := New(o)
	running(b, m.scraper)

	began := time.Now()
	var first errgroup.Group
	for _, w := range workloads {
		first.Go(func() error {
			_, err := m.Usage(context.Background(), w)
			return err
		})
	}
	if err := first.Wait(); err != nil {
		b.Fatal(err)
	}
	warm := time.Since(began)

	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		if _, err := m.Usage(context.Background(), workloads[i%count]); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(warm.Seconds()*1000, "ms/first")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(took[len(took)-1].Microseconds()), "max-µs")
}

// onNode is a workload with devices of a node, whose pool is in the cache.
func onNode(b *testing.B, cache *indexed, node string) workload.State {
	own := holder("own-"+node, claimed{"gpu-0": nil, "gpu-1-timeslice/a": amounts("shares=1", "memory=20Gi")})
	other := holder("other-"+node, claimed{"gpu-1-timeslice/b": amounts("shares=1", "memory=20Gi")})
	for i := range own.Status.Allocation.Devices.Results {
		own.Status.Allocation.Devices.Results[i].Pool = node
	}
	other.Status.Allocation.Devices.Results[0].Pool = node
	cache.add(b, own, other)
	devices := claimed{"gpu-0": nil, "gpu-1-timeslice": amounts("shares=4", "memory=80Gi")}
	for slice := range 9 {
		published := poolSlice(fmt.Sprintf("%s-%d", node, slice), 1, devices)
		published.Spec.Pool.Name, published.Spec.NodeName = node, ptr.To(node)
		cache.add(b, published)
		devices = claimed{}
		for i := range 40 {
			devices[fmt.Sprintf("gpu-%d-mig-%d", slice, i)] = nil
		}
	}
	state := ofClaims(own)
	state.Pods[0].Node = node
	return state
}

// BenchmarkMemory is what a Meter keeps for 1,000 nodes with 56 partitions each.
func BenchmarkMemory(b *testing.B) {
	var lines [][]string
	for i := range 56 {
		lines = append(lines, series(fmt.Sprintf("gpu-%d-mig-1g10gb-19-%d", i/7, i%7), 0.5, 1, 2, time.Now()))
	}
	text := strings.Join(page(lines...), "\n") + "\n"
	for b.Loop() {
		before := heap()
		s := newScraper(clock.RealClock{}, nil)
		for i := range 1000 {
			node := fmt.Sprintf("n%d", i)
			own, err := ownLines(strings.NewReader(text))
			if err != nil {
				b.Fatal(err)
			}
			readings, err := parse(own)
			if err != nil {
				b.Fatal(err)
			}
			s.ask(node)
			s.keep(b.Context(), node, time.Now(), readings, nil)
		}
		b.ReportMetric(float64(int64(heap())-int64(before))/1e6, "MB")
		runtime.KeepAlive(s)
	}
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
