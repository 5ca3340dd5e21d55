package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"syscall"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/test/fixture"
)

// bigCluster serves nodes of eight H100 in pages that were encoded before, as an API server has them in
// its cache: slices in the order of their names, and four claims per node.
func bigCluster(t testing.TB, nodes int, policy gpu.Policy) (s *apiServer, bytes int) {
	t.Helper()
	s = newAPIServer(t)
	directory := t.TempDir()
	published := publishedBy(t, "p5.48xlarge", policy)
	var page []apiruntime.Object
	flush := func(what string, last bool) {
		next := ""
		if !last {
			next = strconv.Itoa(len(s.files[what]) + 1)
		}
		wire := encodePage(what, page, next)
		file := filepath.Join(directory, fmt.Sprint(what, len(s.files[what])))
		if err := os.WriteFile(file, wire, 0o600); err != nil {
			t.Fatal(err)
		}
		s.files[what], page, bytes = append(s.files[what], file), nil, bytes+len(wire)
	}
	for n := range published {
		for i := range nodes {
			page = append(page, sliceOf(published[n], i, n, len(published)))
			if last := n == len(published)-1 && i == nodes-1; last || len(page) == pageOfObjects {
				flush("resourceslices", last)
			}
		}
	}
	for i := range nodes {
		for n := range 4 {
			result := fixture.Result("gpu", fmt.Sprint("gpu-", n))
			result.Pool = nodeName(i)
			claim := fixture.Claim(fmt.Sprintf("train-%d-%d", i, n), result)
			claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: claim.Name, UID: claim.UID}}
			page = append(page, claim)
			if last := i == nodes-1 && n == 3; last || len(page) == pageOfObjects {
				flush("resourceclaims", last)
			}
		}
	}
	return s, bytes
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

// sliceOf is one of a node, with UUIDs of its own.
func sliceOf(published resourceapi.ResourceSliceSpec, i, n, of int) *resourceapi.ResourceSlice {
	spec := published.DeepCopy()
	s := nodeSlices([]resourceapi.ResourceSliceSpec{*spec}, nodeName(i))[0]
	s.Name = fmt.Sprintf("%05d-gpu.nvidia.com-%s", n, nodeName(i))
	s.Spec.Pool.ResourceSliceCount = int64(of)
	for d := range s.Spec.Devices {
		attributes := s.Spec.Devices[d].Attributes
		for _, name := range []resourceapi.QualifiedName{gpu.AttributeUUID, gpu.AttributeParentUUID} {
			if value, has := attributes[name]; has {
				attributes[name] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("%s-%05d", (*value.StringValue)[:34], i))}
			}
		}
	}
	return s
}

// measure runs kubectl gpu list, and gives how long it takes and the most of the heap beside what the
// server has.
func measure(t testing.TB, s *apiServer, arguments ...string) (time.Duration, uint64) {
	t.Helper()
	heap := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // whatever GOGC is
	runtime.GC()
	before, most := heap(), make(chan uint64)
	done := make(chan struct{})
	go func() {
		var peak uint64
		for {
			peak = max(peak, heap())
			select {
			case <-done:
				most <- peak
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	command := newCommand()
	command.SetArgs(append(append([]string{"list"}, arguments...), s.flags(t)...))
	command.SetOut(io.Discard)
	command.SetErr(io.Discard)
	began := time.Now()
	if err := command.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(began)
	close(done)
	return took, max(<-most, before) - before
}

// processorTime is what this process has taken, with its server.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// pageOfObjects is as many as fleet.Read asks for.
const pageOfObjects = 100

var everyShape = gpu.Policy{Whole: true, MIG: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4}}

// Another node must not take the memory of its slices, which are 170 kB.
func TestListingManyNodesTakesLittleMemory(t *testing.T) {
	const nodes, limit = 400, 120e6
	s, bytes := bigCluster(t, nodes, everyShape)
	took, most := measure(t, s)
	t.Logf("%d nodes send %d MB: listing takes %s, the heap has %d MB at most", nodes, bytes/1e6, took, most/1e6)
	if most > limit {
		t.Errorf("listing %d nodes takes %d MB: it is to take %d MB at most", nodes, most/1e6, int(limit/1e6))
	}
}

// BenchmarkList is of 5,000 nodes, each with eight GPUs, with four of them in use: within 20 s and 300 MB.
func BenchmarkList(b *testing.B) {
	for name, policy := range map[string]gpu.Policy{"whole": {Whole: true}, "every shape": everyShape} {
		s, bytes := bigCluster(b, 5_000, policy)
		for _, format := range []string{"table", "wide", "json"} {
			b.Run(name+"/"+format, func(b *testing.B) {
				for b.Loop() {
					before := processorTime(b)
					took, most := measure(b, s, "-o", format)
					b.ReportMetric((processorTime(b) - before).Seconds(), "cpu-s/list")
					b.ReportMetric(took.Seconds(), "s/list")
					b.ReportMetric(float64(most)/1e6, "peak-MB")
					b.ReportMetric(float64(bytes)/1e6, "sent-MB")
					if took > 20*time.Second || most > 300e6 {
						b.Errorf("listing took %s and %d MB: 20 s and 300 MB are promised", took, most/1e6)
					}
				}
			})
		}
	}
}
