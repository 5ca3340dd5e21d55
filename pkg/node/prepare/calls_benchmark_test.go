package prepare

import (
	"fmt"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// endTogether is how long 56 partitions may take to end together where a call of NVML takes
// 10 ms: kubelet gives up after 45 s, and so long a look-up by UUID has taken on real nodes.
const endTogether = 10 * time.Second

// BenchmarkCallsOfNVML prints how many calls of NVML the parts of a claim's life make, and how
// long they take where each call takes 1 ms or 10 ms.
func BenchmarkCallsOfNVML(b *testing.B) {
	for _, latency := range []time.Duration{time.Millisecond, 10 * time.Millisecond} {
		b.Run(latency.String(), func(b *testing.B) {
			r := newMIGRig(b)
			p := r.startMIG(b, nil)
			prepare(b, p, r.allocated("neighbour", "gpu-0-mig-1g10gb-19-6")) // MIG is enabled, and stays so
			node, _, err := r.library.Discover()
			if err != nil {
				b.Fatal(err)
			}
			if err := r.machine.SetLatency(model.AnyFunction, latency); err != nil {
				b.Fatal(err)
			}
			partition, whole := r.allocated("partition", "gpu-0-mig-1g10gb-19-0"), r.allocated("whole", "gpu-1")
			parts := []struct {
				name string
				does func()
			}{
				{"prepare", func() { prepare(b, p, partition) }},
				{"prepared", func() { prepare(b, p, partition) }},
				{"unprepare", func() { unprepare(b, p, partition) }},
				{"whole", func() { prepare(b, p, whole) }},
				{"unprepare-whole", func() { unprepare(b, p, whole) }},
				{"look-at-8", func() {
					if _, err := r.library.Refresh(node.GPUs); err != nil {
						b.Fatal(err)
					}
				}},
			}
			calls, took := make([]int, len(parts)), make([]time.Duration, len(parts))
			for b.Loop() {
				if _, err := r.library.Refresh(node.GPUs); err != nil { // which sees what the last round has changed
					b.Fatal(err)
				}
				for i, part := range parts {
					start := time.Now()
					calls[i] += r.calls(b, part.does).Total()
					took[i] += time.Since(start)
				}
			}
			b.ReportMetric(0, "ns/op")
			for i, part := range parts {
				b.ReportMetric(float64(calls[i])/float64(b.N), part.name+"-calls")
				b.ReportMetric(float64(took[i].Microseconds())/1000/float64(b.N), part.name+"-ms")
			}
		})
	}
}

// BenchmarkPartitionsThatEndTogether ends all partitions of a node at once.
func BenchmarkPartitionsThatEndTogether(b *testing.B) {
	r := newMIGRig(b)
	p := r.startMIG(b, nil)
	var claims []*resourceapi.ResourceClaim
	for g := range gpuCount {
		for start := range 7 {
			claims = append(claims, r.allocated(fmt.Sprintf("c%d-%d", g, start), fmt.Sprintf("gpu-%d-mig-1g10gb-19-%d", g, start)))
		}
	}
	var longest time.Duration
	for b.Loop() {
		for _, claim := range claims {
			prepare(b, p, claim)
		}
		if err := r.machine.SetLatency(model.AnyFunction, 10*time.Millisecond); err != nil {
			b.Fatal(err)
		}
		start := time.Now()
		var all sync.WaitGroup
		for _, claim := range claims {
			all.Go(func() {
				if err := p.Unprepare(testContext(b), claim.UID); err != nil {
					b.Error(err)
				}
			})
		}
		all.Wait()
		longest = max(longest, time.Since(start))
		if err := r.machine.Clear(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(longest.Milliseconds()), "longest-ms")
	if longest > endTogether {
		b.Errorf("%d partitions took %s to end together, want at most %s", len(claims), longest, endTogether)
	}
}
