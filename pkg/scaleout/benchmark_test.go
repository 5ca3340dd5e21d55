package scaleout

import (
	"fmt"
	"runtime"
	"runtime/metrics"
	"syscall"
	"testing"
	"time"

	"github.com/mica-gpu/mica/pkg/devices"
)

// fleet is a cluster of a size.
type fleet struct {
	pods, kinds, groups, nodes int
}

// The limits are 20 ms for the small fleet, and 1 s and 500 MB for the large one, on two cores.
// peakMB is the heap at its largest, snapshot and all; MB/op is what is allocated on the way.
func BenchmarkPlan(b *testing.B) {
	b.Run("small", func(b *testing.B) { fleet{100, 5, 5, 20}.benchmark(b) })
	b.Run("large", func(b *testing.B) { fleet{10_000, 20, 50, 1_000}.benchmark(b) })
}

// BenchmarkPlanWhileStarting is of nodes that all count as their templates, as after an update of
// the driver's DaemonSet.
func BenchmarkPlanWhileStarting(b *testing.B) {
	f := fleet{10_000, 20, 50, 1_000}
	w := f.world(b)
	for i := range w.Nodes {
		w.Nodes[i].Starting = true
	}
	f.plan(b, w)
}

// BenchmarkPlanWithSamples is of 1,000 replicas of 20 kinds, half of them like pods that wait.
func BenchmarkPlanWithSamples(b *testing.B) {
	for name, f := range map[string]fleet{"small": {100, 5, 5, 20}, "large": {10_000, 20, 50, 1_000}} {
		b.Run(name, func(b *testing.B) {
			w := f.world(b)
			for i := range 1_000 {
				w.line(fmt.Sprintf("replica sample-%d templates=%s cpu=%d memory=8Gi", i, benchmarkTemplates[i%len(benchmarkTemplates)], 2+i%20/10*5))
			}
			f.plan(b, w)
		})
	}
}

func BenchmarkPlanByPods(b *testing.B) {
	for _, pods := range []int{1_000, 3_000, 10_000, 30_000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) { fleet{pods, 20, 50, 1_000}.benchmark(b) })
	}
}

func BenchmarkPlanByNodes(b *testing.B) {
	for _, nodes := range []int{0, 100, 300, 1_000, 3_000} {
		b.Run(fmt.Sprint(nodes), func(b *testing.B) { fleet{10_000, 20, 50, nodes}.benchmark(b) })
	}
}

func BenchmarkPlanByGroups(b *testing.B) {
	for _, groups := range []int{5, 15, 50, 150} {
		b.Run(fmt.Sprint(groups), func(b *testing.B) { fleet{10_000, 20, groups, 1_000}.benchmark(b) })
	}
}

func (f fleet) benchmark(b *testing.B) { f.plan(b, f.world(b)) }

func (f fleet) plan(b *testing.B, w *world) {
	peak := watchHeap()
	before := processorTime(b)
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		decision, err := Plan(b.Context(), w.Snapshot)
		if err != nil {
			b.Fatal(err)
		}
		if len(decision.Kinds) != f.kinds {
			b.Fatalf("%d kinds, want %d", len(decision.Kinds), f.kinds)
		}
	}
	b.StopTimer()
	b.ReportMetric(float64((processorTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/plan")
	b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N), "ms/plan")
	b.ReportMetric(float64(peak())/1e6, "peakMB")
}

// processorTime is what the process has used, of all cores: a machine that is busy with other
// things does not change it.
func processorTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// watchHeap samples the heap until the function that it gives is called, which tells the most.
func watchHeap() func() uint64 {
	runtime.GC()
	done, most := make(chan struct{}), make(chan uint64)
	go func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		// Unlike ReadMemStats it does not stop the world.
		heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		var peak uint64
		for {
			metrics.Read(heap)
			peak = max(peak, heap[0].Value.Uint64())
			select {
			case <-done:
				most <- peak
				return
			case <-ticker.C:
			}
		}
	}()
	return func() uint64 {
		close(done)
		return <-most
	}
}

// benchmarkClaims are claims of many sorts, as in scenarios.
var benchmarkClaims = []string{
	"template one", "request gpu gpu.nvidia.com",
	"template two", "request gpu gpu.nvidia.com count=2",
	"template four", "request gpu gpu.nvidia.com count=4", "match gpu.nvidia.com/nvlinkGroup",
	"template eight", "request gpu gpu.nvidia.com count=8",
	"template large", "request gpu gpu.nvidia.com cel=`device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('70Gi')) >= 0`",
	"template hopper", "request gpu gpu.nvidia.com cel=`device.attributes['gpu.nvidia.com'].architecture == 'Hopper'`",
	"template small", "request gpu mig.nvidia.com cel=`device.attributes['gpu.nvidia.com'].profile == '1g.10gb'`",
	"template third", "request gpu mig.nvidia.com cel=`device.attributes['gpu.nvidia.com'].profile == '3g.40gb'`",
	"template share", "request gpu timeslice.nvidia.com",
	"template either", "first gpu", "or b gpu.nvidia.com cel=`device.attributes['gpu.nvidia.com'].architecture == 'Blackwell'`", "or a gpu.nvidia.com",
}

var benchmarkTemplates = []string{"one", "two", "four", "eight", "large", "hopper", "small", "third", "share", "either"}

// world has machines of five types, half of them in use, with all their shapes, and kinds that
// differ in claims and CPU.
func (f fleet) world(b *testing.B) *world {
	w := newWorld(b)
	for _, line := range benchmarkClaims {
		w.line(line)
	}
	machines := []string{"p5.48xlarge", "p5e.48xlarge", "p4d.24xlarge", "p6-b200.48xlarge", "g5.12xlarge"}
	for i := range f.groups {
		w.line(fmt.Sprintf("group group-%d %s shapes=whole,mig,timeslice price=%d.%d daemon=1 labels=pool:pool-%d", i, machines[i%len(machines)], 10+i%7, i, i))
	}
	for i := range f.nodes {
		used := ""
		for gpu := range i % 9 {
			used += fmt.Sprintf(",gpu-%d", gpu)
		}
		if used != "" {
			used = "used=" + used[1:]
		}
		w.line(fmt.Sprintf("node node-%d %s shapes=whole,mig,timeslice group=group-%d labels=pool:pool-%d %s", i, "p5.48xlarge", 5*(i%f.groups/5), i%f.groups, used))
	}
	ownUUIDs(w.Slices)
	compactor := devices.NewCompactor() // as in the controller's cache
	for _, slice := range w.Slices {
		compactor.Compact(slice)
	}
	for i := range f.kinds {
		w.line(fmt.Sprintf("pods kind-%d %d templates=%s cpu=%d memory=8Gi", i, f.pods/f.kinds, benchmarkTemplates[i%len(benchmarkTemplates)], 2+2*(i/len(benchmarkTemplates))))
	}
	return w
}
