//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// BenchmarkPodsWithGPUs measures how long a pod for every GPU takes from the first request
// until all run, against the same pods without claims. The two alternate in one run, so
// that what else the machine does meets both. The time until all are bound tells apart what
// Kubernetes does for claims before the driver is asked.
func BenchmarkPodsWithGPUs(b *testing.B) {
	s := newScenario(b, len(under.devices))
	s.createTemplate("one", s.claimFor(1))
	with := func(name string) *corev1.Pod { return s.podFromTemplate(name, "one") }
	without := s.plainPod
	s.timeUndisturbed("warm-up", with) // images are unpacked, caches are filled

	var withClaims, withoutClaims []burst
	for b.Loop() {
		for round := range benchRounds(b) {
			withoutClaims = append(withoutClaims, s.timeUndisturbed(fmt.Sprintf("without-%d", round), without))
			withClaims = append(withClaims, s.timeUndisturbed(fmt.Sprintf("with-%d", round), with))
		}
	}
	b.ReportMetric(0, "ns/op")
	claims, plain := reportBursts(b, "with-claims", withClaims), reportBursts(b, "without-claims", withoutClaims)
	b.ReportMetric(float64(claims.running)/float64(plain.running), "ratio")
	b.ReportMetric(float64(claims.running-claims.bound)/float64(plain.running-plain.bound), "ratio-once-bound")
}

// burst is how long it took until all pods were bound and until all ran.
type burst struct{ bound, running time.Duration }

// reportBursts returns the medians.
func reportBursts(b *testing.B, name string, bursts []burst) burst {
	var bound, running []time.Duration
	for _, one := range bursts {
		bound, running = append(bound, one.bound), append(running, one.running)
	}
	b.Logf("%s: bound %v, running %v", name, bound, running)
	medians := burst{bound: median(bound), running: median(running)}
	b.ReportMetric(float64(medians.running.Milliseconds()), name+"-ms")
	b.ReportMetric(float64(medians.bound.Milliseconds()), name+"-bound-ms")
	return medians
}

// timeUndisturbed repeats a burst in which the node authorizer made kubelet wait: that time
// belongs to no driver. How often that was is in the log.
func (s *scenario) timeUndisturbed(prefix string, build func(name string) *corev1.Pod) burst {
	s.Helper()
	const attempts = 5
	for attempt := range attempts {
		before, err := s.refused(s.Context())
		must(s, err, "read the events")
		taken := s.timeBurst(fmt.Sprintf("%s-%d", prefix, attempt), build)
		after, err := s.refused(s.Context())
		must(s, err, "read the events")
		if len(after) == len(before) {
			return taken
		}
		s.Logf("%s took %s because the node authorizer refused kubelet a claim; once more", prefix, taken.running)
	}
	s.Fatalf("the node authorizer refused kubelet a claim in each of %d attempts of %s", attempts, prefix)
	return burst{}
}

// timeBurst applies a pod a GPU together and returns the time until the last one is bound
// and runs. It returns after the pods are gone again.
func (s *scenario) timeBurst(prefix string, build func(name string) *corev1.Pod) burst {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), retryTimeout)
	defer cancel()
	watcher, err := s.client.CoreV1().Pods(s.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "burst=" + prefix})
	must(s, err, "watch the pods")
	defer watcher.Stop()
	start := time.Now()
	all := names(prefix, len(s.devices))
	errs := make(chan error, len(all))
	for _, name := range all {
		pod := build(name)
		pod.Labels = map[string]string{"burst": prefix}
		go func() {
			_, err := s.client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
			errs <- err
		}()
	}
	for range all {
		must(s, <-errs, "create the pods")
	}
	var taken burst
	bound, running := map[string]bool{}, map[string]bool{}
	for len(running) < len(all) {
		event, open := <-watcher.ResultChan()
		if !open {
			s.Fatalf("only %d of %d pods run after %s", len(running), len(all), time.Since(start))
		}
		pod, ok := event.Object.(*corev1.Pod)
		if !ok || event.Type != watch.Modified {
			continue
		}
		if pod.Spec.NodeName != "" && !bound[pod.Name] {
			bound[pod.Name] = true
			taken.bound = time.Since(start)
		}
		if pod.Status.Phase == corev1.PodRunning && !running[pod.Name] {
			running[pod.Name] = true
			taken.running = time.Since(start)
		}
	}
	eventually(s, goneTimeout, "the pods are gone", s.deletePods)
	eventually(s, goneTimeout, "their claims are gone", s.expectNoClaims)
	return taken
}

func benchRounds(b *testing.B) int {
	text := os.Getenv("MICA_E2E_BENCH_ROUNDS")
	if text == "" {
		return 5
	}
	rounds, err := strconv.Atoi(text)
	if err != nil || rounds < 1 {
		b.Fatalf("MICA_E2E_BENCH_ROUNDS is %q, want a number from 1 on", text)
	}
	return rounds
}

func median(durations []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(durations))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
