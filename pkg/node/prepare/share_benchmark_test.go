package prepare

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/mica-gpu/mica/pkg/gpu"
)

// BenchmarkFurtherShare measures what a share costs on a GPU that is in that shape
// already, without kubelet's and the API server's part: one, and sixteen at once.
func BenchmarkFurtherShare(b *testing.B) {
	for _, device := range sharedDevices {
		b.Run(device, func(b *testing.B) {
			r := newShareRigWith(b, gpu.DefaultInterval)
			p := r.startShares(b, nil)
			prepare(b, p, r.sharing("first", device))
			var claims []*resourceapi.ResourceClaim
			for i := range 16 {
				claims = append(claims, r.sharing(fmt.Sprint("c", i), device))
			}
			var one, sixteen []time.Duration
			for b.Loop() {
				for _, claim := range claims {
					one = append(one, prepareAll(b, p, claim))
				}
				unprepareEach(b, p, claims)
				sixteen = append(sixteen, prepareAll(b, p, claims...))
				unprepareEach(b, p, claims)
			}
			b.ReportMetric(0, "ns/op")
			reportAtMost(b, "one-ms", one, 4*time.Millisecond)
			reportAtMost(b, "sixteen-ms", sixteen, 40*time.Millisecond)
		})
	}
}

// prepareAll prepares claims, all at once.
func prepareAll(b *testing.B, p *Preparer, claims ...*resourceapi.ResourceClaim) time.Duration {
	b.Helper()
	ctx := b.Context()
	start := time.Now()
	errs := make([]error, len(claims))
	var group sync.WaitGroup
	for i, claim := range claims {
		group.Go(func() { _, errs[i] = p.Prepare(ctx, claim) })
	}
	group.Wait()
	took := time.Since(start)
	if err := inOneLine(errs); err != nil {
		b.Fatal(err)
	}
	return took
}

func unprepareEach(b *testing.B, p *Preparer, claims []*resourceapi.ResourceClaim) {
	b.Helper()
	for _, claim := range claims {
		if err := p.Unprepare(b.Context(), claim.UID); err != nil {
			b.Fatal(err)
		}
	}
}

// reportAtMost fails the benchmark where the median is above the limit.
func reportAtMost(b *testing.B, metric string, times []time.Duration, limit time.Duration) {
	b.Helper()
	slices.Sort(times)
	median := times[len(times)/2]
	b.ReportMetric(float64(median.Microseconds())/1000, metric)
	if median > limit {
		b.Errorf("the median is %v, want at most %v", median, limit)
	}
}
