//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// BenchmarkScaleOut measures from Cluster Autoscaler's word that it cannot help a pod to the
// placeholder (limit: 2 s), and from the pod to the node that has it. In the latter, most is
// the autoscaler's: two scans of 5 s, and 2 s that a machine of the simulated cloud takes.
func BenchmarkScaleOut(b *testing.B) {
	s := newScaleOut(b, "bench")
	s.createTemplate("one", s.claimFor(8))
	var toPlaceholder, toNode []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("pod-%d", i)
		start := time.Now()
		said, made := s.timePlaceholder(name)
		s.expectPlaced(name)
		toNode = append(toNode, time.Since(start))
		toPlaceholder = append(toPlaceholder, made.Sub(said))
		s.deletePod(name)
		must(b, theFleet(b).cloud.Remove(b.Context(), "bench"), "remove the nodes")
		eventually(b, startTimeout, "the nodes are gone", func(ctx context.Context) error { return s.expectNodesGone(ctx, "bench") })
		must(b, theFleet(b).cloud.Put(b.Context(), groupOf(b, "bench").machines("bench")), "set the group up again")
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(toPlaceholder)), "verdict-to-placeholder-ms")
	b.ReportMetric(milliseconds(slices.Max(toPlaceholder)), "worst-verdict-to-placeholder-ms")
	b.ReportMetric(milliseconds(median(toNode)), "pod-to-placed-ms")
}

// timePlaceholder makes a pod, and tells when the autoscaler's Event and the placeholder were
// seen. Without that Event there is the placeholder's grace, which is not what is measured.
func (s *scaleOut) timePlaceholder(name string) (said, made time.Time) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), nodeTimeout)
	defer cancel()
	events, err := s.client.CoreV1().Events(s.namespace).Watch(ctx, metav1.ListOptions{FieldSelector: "reason=NotTriggerScaleUp,involvedObject.name=" + name})
	must(s, err, "watch Events")
	defer events.Stop()
	pods, err := s.client.CoreV1().Pods("").Watch(ctx, metav1.ListOptions{LabelSelector: placeholderLabel + "=" + s.groups[0]})
	must(s, err, "watch placeholders")
	defer pods.Stop()
	s.createPod(s.onGroups(s.podFromTemplate(name, "one")))
	for said.IsZero() || made.IsZero() {
		select {
		case <-ctx.Done():
			s.Fatalf("no placeholder for pod %s: the autoscaler has said so: %t", name, !said.IsZero())
		case event := <-events.ResultChan():
			if said.IsZero() && event.Type == watch.Added {
				said = time.Now()
			}
		case event := <-pods.ResultChan():
			if pod, is := event.Object.(*corev1.Pod); is && made.IsZero() && event.Type == watch.Added && pod.DeletionTimestamp == nil {
				made = time.Now()
			}
		}
	}
	return said, made
}
