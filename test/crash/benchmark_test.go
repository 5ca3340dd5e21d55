package crash_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// creation is how long the simulated driver takes for a GPU instance.
const creation = 300 * time.Millisecond

// BenchmarkPartitions measures what kubelet waits for, over the plugin's socket,
// where a GPU instance takes 300 ms: one claim, a claim on each of eight GPUs at
// once, and seven claims on one GPU at once. Then, without that latency, the
// whole of a partition's and of a whole GPU's prepare.
func BenchmarkPartitions(b *testing.B) {
	n := newNode(b)
	p := n.start()
	var each, seven, whole []*resourceapi.ResourceClaim
	for i := range 8 {
		each = append(each, n.put(fmt.Sprint("each", i), fmt.Sprintf("gpu-%d-mig-1g10gb-19-0", i)))
		whole = append(whole, n.put(fmt.Sprint("whole", i), fmt.Sprint("gpu-", i)))
	}
	for i := range 7 {
		seven = append(seven, n.put(fmt.Sprint("seven", i), fmt.Sprint("gpu-0-mig-1g10gb-19-", i)))
	}
	var one, eight, onOne, partition, gpu, gpus, unmake []time.Duration
	slow := []struct {
		claims []*resourceapi.ResourceClaim
		times  *[]time.Duration
	}{{each[:1], &one}, {each, &eight}, {seven, &onOne}}
	for b.Loop() {
		n.must(n.gpu.SetLatency("nvmlDeviceCreateGpuInstanceWithPlacement", creation))
		for _, at := range slow {
			*at.times = append(*at.times, n.prepareAll(p, at.claims))
			n.unprepareAll(p, at.claims)
		}
		n.must(n.gpu.Clear())
		for _, claim := range each {
			partition = append(partition, n.prepareAll(p, []*resourceapi.ResourceClaim{claim}))
			unmake = append(unmake, n.unprepareAll(p, []*resourceapi.ResourceClaim{claim}))
		}
		for _, claim := range whole {
			gpu = append(gpu, n.prepareAll(p, []*resourceapi.ResourceClaim{claim}))
			n.unprepareAll(p, []*resourceapi.ResourceClaim{claim})
		}
		gpus = append(gpus, n.prepareAll(p, whole))
		n.unprepareAll(p, whole)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(ms(median(one)), "one-ms")
	reportAtMost(b, "eight-gpus/one", ms(median(eight))/ms(median(one)), 1.3)
	reportAtMost(b, "seven-on-one/one", ms(median(onOne))/ms(median(one)), 7.3)
	b.ReportMetric(ms(median(partition)), "partition-without-latency-ms")
	b.ReportMetric(ms(median(unmake)), "unprepare-without-latency-ms")
	reportAtMost(b, "whole-gpu-ms", ms(median(gpu)), 2.5)
	reportAtMost(b, "eight-whole-gpus-ms", ms(median(gpus)), 12)
}

// BenchmarkFurtherShares measures what kubelet waits for, over the plugin's socket, where
// a GPU is shared already: a further share, and sixteen of them at once.
func BenchmarkFurtherShares(b *testing.B) {
	for _, device := range []string{sliced, served} {
		b.Run(device, func(b *testing.B) {
			n := newNode(b, everyShape)
			n.supervise()
			p := n.start()
			n.must(p.prepare(n.Context(), n.put("first", device)))
			var claims []*resourceapi.ResourceClaim
			for i := range 16 {
				claims = append(claims, n.put(fmt.Sprint("c", i), device))
			}
			var one, sixteen []time.Duration
			for b.Loop() {
				for _, claim := range claims {
					one = append(one, n.prepareAll(p, []*resourceapi.ResourceClaim{claim}))
				}
				n.unprepareAll(p, claims)
				sixteen = append(sixteen, n.prepareAll(p, claims))
				n.unprepareAll(p, claims)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(ms(median(one)), "one-ms")
			b.ReportMetric(ms(median(sixteen)), "sixteen-ms")
		})
	}
}

// reportAtMost fails the benchmark above the limit.
func reportAtMost(b *testing.B, metric string, value, limit float64) {
	b.Helper()
	b.ReportMetric(value, metric)
	if value > limit {
		b.Errorf("%s is %.2f, want at most %g", metric, value, limit)
	}
}

// prepareAll prepares claims, all at once.
func (n *node) prepareAll(p *plugin, claims []*resourceapi.ResourceClaim) time.Duration {
	n.Helper()
	start := time.Now()
	n.atOnce(claims, func(claim *resourceapi.ResourceClaim) error { return p.prepare(n.Context(), claim) })
	return time.Since(start)
}

func (n *node) unprepareAll(p *plugin, claims []*resourceapi.ResourceClaim) time.Duration {
	n.Helper()
	start := time.Now()
	n.atOnce(claims, func(claim *resourceapi.ResourceClaim) error { return p.unprepare(n.Context(), claim) })
	return time.Since(start)
}

func (n *node) atOnce(claims []*resourceapi.ResourceClaim, do func(*resourceapi.ResourceClaim) error) {
	n.Helper()
	errs := make(chan error, len(claims))
	for _, claim := range claims {
		go func() { errs <- do(claim) }()
	}
	for range claims {
		n.must(<-errs)
	}
}

func median[T cmp.Ordered](values []T) T {
	slices.Sort(values)
	return values[len(values)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
