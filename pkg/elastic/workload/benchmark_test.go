package workload

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	manyWorkloads = 1000
	podsOfEach    = 10
	// mostToPush is what the first pending claim may take to whoever watches.
	mostToPush = 500 * time.Millisecond
)

func manyName(i int) string { return fmt.Sprintf("w-%d", i) }

// manyWorld has 1,000 Deployments of ten pods that run, each with a claim.
func manyWorld(b *testing.B) *world {
	objects := []client.Object{newClass("gpu", "nvidia.com/gpu"), newTemplate("gpu", "gpu")}
	for i := range manyWorkloads {
		name := manyName(i)
		objects = append(objects, newDeployment(name), newReplicaSet(name+"-1", name))
		for j := range podsOfEach {
			pod := fmt.Sprintf("%s-1-%d", name, j)
			objects = append(objects,
				newPod(pod, name+"-1", namesTemplate("g", "gpu"), hasGenerated("g"), on("n")),
				allocated(generated(pod, "g", "gpu"), noon, device("n", "gpu-0")))
		}
	}
	w := newWorld(b, objects...)
	if _, err := w.index.Pending(b.Context(), ofClass("gpu")); err != nil {
		b.Fatal(err)
	}
	return w
}

func BenchmarkWorkload(b *testing.B) {
	w := manyWorld(b)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		state, err := w.index.Workload(b.Context(), *ofWorkload(KindDeployment, manyName(i%manyWorkloads)).Workload)
		if err != nil || len(state.Pods) != podsOfEach || len(state.Pods[0].Devices) != 1 {
			b.Fatalf("%+v, %v", state, err)
		}
	}
}

func BenchmarkPending(b *testing.B) {
	w := manyWorld(b)
	w.add(newPod("waiting", manyName(0)+"-1", namesTemplate("g", "gpu")))
	w.await(w.watch(ofClass("gpu")), 1)
	for _, of := range []Pending{ofWorkload(KindDeployment, manyName(0)), ofClass("gpu")} {
		name := "workload"
		if of.Class != "" {
			name = "class"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if count, err := w.index.Pending(b.Context(), of); err != nil || count != 1 {
					b.Fatal(count, err)
				}
			}
		})
	}
}

// BenchmarkFirstPendingClaim is from the API server's event of a pod to the count at one of
// 1,000 watchers. It fails where that takes too long.
func BenchmarkFirstPendingClaim(b *testing.B) {
	w := manyWorld(b)
	var watches [manyWorkloads]<-chan int
	for i := range watches {
		watches[i] = w.watch(ofWorkload(KindDeployment, manyName(i)))
		w.await(watches[i], 0)
	}
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		counts := watches[i%manyWorkloads]
		pod := newPod("waiting", manyName(i%manyWorkloads)+"-1", namesTemplate("g", "gpu"))
		begin := time.Now()
		w.add(pod)
		w.await(counts, 1)
		took = append(took, time.Since(begin))
		w.remove(pod)
		w.await(counts, 0)
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs/push")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs/push")
	if slowest := took[len(took)-1]; slowest > mostToPush {
		b.Errorf("the slowest push took %s, at most %s is promised", slowest, mostToPush)
	}
}

// BenchmarkAllPodsWait is a burst: 10,000 pods ask for one class at once, and each is counted
// as it comes.
func BenchmarkAllPodsWait(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		w := newWorld(b, newClass("gpu", ""), newTemplate("gpu", "gpu"))
		counts := w.watch(ofClass("gpu"))
		b.StartTimer()
		for i := range manyWorkloads * podsOfEach {
			w.add(newPod(fmt.Sprintf("p-%d", i), "", namesTemplate("g", "gpu")))
		}
		w.await(counts, manyWorkloads*podsOfEach)
	}
}
