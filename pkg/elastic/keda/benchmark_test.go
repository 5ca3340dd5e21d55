package keda

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// dial returns a client of the world's scaler, over gRPC on loopback.
func dial(b *testing.B, w *world) externalscaler.ExternalScalerClient {
	b.Helper()
	listening, stopped := make(chan net.Addr, 1), make(chan error, 1)
	server, err := NewServer(Options{Address: "127.0.0.1:0", Listening: func(a net.Addr) { listening <- a }, Clock: clock.RealClock{}}, w.scaler)
	if err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(klog.NewContext(b.Context(), klog.Logger{}))
	go func() { stopped <- server.Start(ctx) }()
	b.Cleanup(func() {
		stop()
		if err := <-stopped; err != nil {
			b.Error(err)
		}
	})
	connection, err := grpc.NewClient((<-listening).String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = connection.Close() })
	return externalscaler.NewExternalScalerClient(connection)
}

// manyObjects are 1,000 ScaledObjects of all metrics, each of a target of its own.
func manyObjects(w *world) []*externalscaler.ScaledObjectRef {
	w.pods = pods(4)
	w.usage = usage.Usage{Utilization: usage.Mean{Value: 0.9}, Memory: usage.Mean{Value: 0.5}, Devices: 4}
	w.answers["sum(waiting)"] = 1000
	bases := []map[string]string{classTrigger, busyTrigger, memoryTrigger, queryTrigger}
	all := make([]*externalscaler.ScaledObjectRef, 1000)
	for i := range all {
		name := fmt.Sprint("llm-", i)
		metadata := with(bases[i%len(bases)], "target", "Deployment/"+name)
		w.supplies["default/Deployment/"+name] = scaleout.Supply{Free: 3, Provisionable: 5, Why: atMaximum}
		all[i] = &externalscaler.ScaledObjectRef{Namespace: "default", Name: name, ScalerMetadata: metadata}
	}
	return all
}

// BenchmarkGetMetrics polls 1,000 ScaledObjects, each for its value and then its activity, as
// KEDA does every 15 seconds, at ten times that pace: an operation is a poll of all.
func BenchmarkGetMetrics(b *testing.B) {
	w := newWorld()
	objects := manyObjects(w)
	client := dial(b, w)
	var mu sync.Mutex
	var took []time.Duration
	poll := func(object *externalscaler.ScaledObjectRef) {
		began := time.Now()
		if _, err := client.GetMetrics(b.Context(), &externalscaler.GetMetricsRequest{ScaledObjectRef: object, MetricName: "m"}); err != nil {
			b.Error(err)
		}
		answered := time.Since(began)
		if _, err := client.IsActive(b.Context(), object); err != nil {
			b.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, answered)
	}
	pace := time.NewTicker(15 * time.Second / 10 / time.Duration(len(objects)))
	defer pace.Stop()
	for b.Loop() {
		var under sync.WaitGroup
		for _, object := range objects {
			<-pace.C
			under.Go(func() { poll(object) })
		}
		under.Wait()
	}
	slices.Sort(took)
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(memory.HeapAlloc)/(1<<20), "heap-MB")
	if p99 := took[len(took)*99/100]; p99 > 20*time.Millisecond {
		b.Errorf("the 99th percentile of GetMetrics is %s: 20ms are promised", p99)
	}
}

// BenchmarkFirstPendingClaim is the time from the index's count of the first claim to KEDA's client, beside
// 1,000 idle streams.
func BenchmarkFirstPendingClaim(b *testing.B) {
	w := newWorld()
	objects := manyObjects(w)
	client := dial(b, w)
	for _, object := range objects {
		stream, err := client.StreamIsActive(b.Context(), object)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			b.Fatal(err)
		}
	}
	w.change(func() { w.changes = nil })
	stream, err := client.StreamIsActive(b.Context(), scaledObject(pendingTrigger))
	if err != nil {
		b.Fatal(err)
	}
	next := func(want int) {
		response, err := stream.Recv()
		if err != nil || response.Result != (want > 0) {
			b.Fatalf("%d claims wait, and the stream says %v, %v", want, response, err)
		}
	}
	next(0)
	for n := 1; b.Loop(); n = 1 - n {
		w.change(func() {
			w.pending["default/Job/train"] = n
			w.changes[0] <- n
		})
		next(n)
	}
}
