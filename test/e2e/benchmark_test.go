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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
)

// BenchmarkPodsWithGPUs measures how long a pod for every GPU takes from the first request
// until all run, against the same pods without claims. The two alternate in one run, so
// that what else the machine does meets both. What claims add is told apart by who adds it: their
// creation and their allocation are Kubernetes', and so is what kubelet does around the driver's
// part, which the plugin's metrics tell.
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
	b.ReportMetric(milliseconds(claims.claimed), "claim-creation-ms")
	b.ReportMetric(milliseconds(claims.bound-claims.claimed), "allocation-ms")
	b.ReportMetric(milliseconds(claims.prepared), "driver-prepare-ms")
	b.ReportMetric(milliseconds(claims.running-claims.bound-(plain.running-plain.bound)), "added-once-bound-ms")
	b.ReportMetric(float64(claims.running)/float64(plain.running), "ratio")
	b.ReportMetric(float64(claims.running-claims.bound)/float64(plain.running-plain.bound), "ratio-once-bound")
}

// burst is how long it took until all pods had their claims, were bound, had a sandbox and ran.
// A pod without claims has them at once.
type burst struct {
	claimed, bound, sandboxed, running time.Duration
	// prepared is what the driver took for each claim, on average.
	prepared time.Duration
}

// reportBursts returns the medians.
func reportBursts(b *testing.B, name string, bursts []burst) burst {
	middle := func(of func(burst) time.Duration) time.Duration {
		var all []time.Duration
		for _, one := range bursts {
			all = append(all, of(one))
		}
		return median(all)
	}
	b.Logf("%s: %+v", name, bursts)
	medians := burst{
		claimed:   middle(func(one burst) time.Duration { return one.claimed }),
		bound:     middle(func(one burst) time.Duration { return one.bound }),
		sandboxed: middle(func(one burst) time.Duration { return one.sandboxed }),
		running:   middle(func(one burst) time.Duration { return one.running }),
		prepared:  middle(func(one burst) time.Duration { return one.prepared }),
	}
	b.ReportMetric(milliseconds(medians.running), name+"-ms")
	b.ReportMetric(milliseconds(medians.bound), name+"-bound-ms")
	b.ReportMetric(milliseconds(medians.sandboxed), name+"-sandbox-ms")
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

// timeBurst applies a pod a GPU together and returns the time until the last one has come
// how far. It returns after the pods are gone again.
func (s *scenario) timeBurst(prefix string, build func(name string) *corev1.Pod) burst {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), retryTimeout)
	defer cancel()
	watcher, err := s.client.CoreV1().Pods(s.namespace).Watch(ctx, metav1.ListOptions{LabelSelector: "burst=" + prefix})
	must(s, err, "watch the pods")
	defer watcher.Stop()
	before := s.prepared()
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
	stages := []*stage{
		{pods: sets.New[string](), reached: hasClaims, last: &taken.claimed},
		{pods: sets.New[string](), reached: func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" }, last: &taken.bound},
		{pods: sets.New[string](), reached: hasSandbox, last: &taken.sandboxed},
		{pods: sets.New[string](), reached: func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }, last: &taken.running},
	}
	running := stages[len(stages)-1]
	for len(running.pods) < len(all) {
		event, open := <-watcher.ResultChan()
		if !open {
			s.Fatalf("only %d of %d pods run after %s", len(running.pods), len(all), time.Since(start))
		}
		if pod, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Modified {
			for _, stage := range stages {
				stage.see(pod, time.Since(start))
			}
		}
	}
	taken.prepared = (s.prepared() - before) / time.Duration(len(all))
	eventually(s, goneTimeout, "the pods are gone", s.deletePods)
	eventually(s, goneTimeout, "their claims are gone", s.expectNoClaims)
	return taken
}

// stage is how far pods come.
type stage struct {
	reached func(*corev1.Pod) bool
	pods    sets.Set[string]
	// last is when the last of the pods came there.
	last *time.Duration
}

func (s *stage) see(pod *corev1.Pod, after time.Duration) {
	if s.reached(pod) && !s.pods.Has(pod.Name) {
		s.pods.Insert(pod.Name)
		*s.last = after
	}
}

func hasClaims(pod *corev1.Pod) bool {
	return len(pod.Spec.ResourceClaims) > 0 && len(pod.Status.ResourceClaimStatuses) == len(pod.Spec.ResourceClaims)
}

// hasSandbox tells that kubelet is done with the claims, too, which it prepares before.
func hasSandbox(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReadyToStartContainers && c.Status == corev1.ConditionTrue
	})
}

// prepared is how long the plugin has prepared claims since it began, each from kubelet's
// request to the answer.
func (s *scenario) prepared() time.Duration {
	s.Helper()
	plugin, err := s.readyPlugin(s.Context())
	must(s, err, "find the plugin")
	seconds, err := s.metric(s.Context(), plugin, `mica_claim_operation_duration_seconds_sum{operation="prepare",result="ok"}`)
	must(s, err, "read how long the plugin has prepared claims")
	return time.Duration(seconds * float64(time.Second))
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
