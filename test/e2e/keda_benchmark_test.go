//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// BenchmarkFirstPendingClaim measures from the request for the first pod whose claim nothing
// satisfies to the activation that the controller pushes to KEDA (limit: 500 ms).
func BenchmarkFirstPendingClaim(b *testing.B) {
	s := &scaleOut{scenario: newScenario(b, 0)}
	s.createTemplate("none", s.claimFor(1, productIs("none")))
	stream, err := s.dialScaler(b).StreamIsActive(b.Context(), &externalscaler.ScaledObjectRef{
		Name: "bench", Namespace: s.namespace,
		ScalerMetadata: map[string]string{"metric": "pendingClaims", "deviceClass": s.driver, "threshold": "1"},
	})
	must(b, err, "open a stream of activity")
	awaitActive(b, stream, false)
	var toPush []time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("pod-%d", i)
		start := time.Now()
		s.createPod(s.podFromTemplate(name, "none"))
		awaitActive(b, stream, true)
		toPush = append(toPush, time.Since(start))
		s.deletePod(name)
		awaitActive(b, stream, false)
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(toPush)), "claim-to-push-ms")
	b.ReportMetric(milliseconds(slices.Max(toPush)), "worst-claim-to-push-ms")
}

// BenchmarkQueriesAtPrometheus counts at Prometheus itself the queries of ScaledObjects that `kubectl gpu scaledobject`
// has printed (limit: 40 per second for 1,000). Each is queried separately, so 250 tell the rate of 1,000, which two
// processors cannot bear: KEDA had 490 after ten minutes. Their pods wait at a scheduling gate.
func BenchmarkQueriesAtPrometheus(b *testing.B) {
	const objects, counted = 250, 2 * time.Minute
	requireKEDA(b)
	s := &scaleOut{scenario: newScenario(b, 0)}
	s.createTemplate("one", s.claimFor(1))
	pod := s.podFromTemplate("", "one")
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.mica.gpu/never"}}
	for i := range objects {
		s.newScaled(scaledName(i), pod)
	}
	served := &scaled{s, "llm"} // by all of them
	served.waiting(1)
	printed := string(s.printScaledObject("deployment/" + scaledName(0) + " --profile realtime --model llm"))
	b.Cleanup(s.unscaleAll)
	for i := range objects {
		s.applyAsUser([]byte(strings.ReplaceAll(printed, scaledName(0), scaledName(i))))
	}
	s.awaitAutoscalers(objects)
	for b.Loop() {
		start, before := time.Now(), s.queriesAnswered()
		<-time.After(counted)
		perSecond := float64(s.queriesAnswered()-before) / time.Since(start).Seconds()
		b.ReportMetric(perSecond, "queries/s")
		b.ReportMetric(perSecond*1000/objects, "queries/s-of-1000")
	}
	b.ReportMetric(0, "ns/op")
}

func scaledName(i int) string { return fmt.Sprintf("llm-%04d", i) }

// awaitAutoscalers waits until so many HorizontalPodAutoscalers have read their metrics.
func (s *scaleOut) awaitAutoscalers(count int) {
	s.Helper()
	eventually(s, 10*time.Minute, fmt.Sprintf("%d HorizontalPodAutoscalers read metrics", count), func(ctx context.Context) error {
		all, err := s.client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		reading := 0
		for _, autoscaler := range all.Items {
			for _, condition := range autoscaler.Status.Conditions {
				if condition.Type == autoscalingv2.ScalingActive && condition.Status == corev1.ConditionTrue {
					reading++
				}
			}
		}
		if reading < count {
			err = fmt.Errorf("%d of %d do", reading, len(all.Items))
		}
		return err
	})
}

// unscaleAll deletes all ScaledObjects and waits until KEDA has let go of them.
func (s *scaleOut) unscaleAll() {
	lasting(s, "no ScaledObject is left", func(ctx context.Context) error {
		objects := s.inNamespace(scaledObjects)
		if err := objects.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
		left, err := objects.List(ctx, metav1.ListOptions{})
		if err == nil && len(left.Items) > 0 {
			err = fmt.Errorf("%d are left", len(left.Items))
		}
		return err
	})
}

// queriesAnswered is how many queries KEDA's Prometheus has answered since it started. It is asked through the API
// server: this process is not on the node's network.
func (s *scaleOut) queriesAnswered() (count int) {
	s.Helper()
	pods := s.client.CoreV1().Pods(kedaNamespace)
	list, err := pods.List(s.Context(), metav1.ListOptions{LabelSelector: "app=prometheus"})
	must(s, err, "find Prometheus")
	if len(list.Items) != 1 {
		s.Fatalf("there are %d pods of Prometheus in namespace %s, and there is to be one", len(list.Items), kedaNamespace)
	}
	own, err := pods.ProxyGet("http", list.Items[0].Name, prometheusPort, "metrics", nil).DoRaw(s.Context())
	must(s, err, "read Prometheus' own metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(own))
	must(s, err, "decode Prometheus' own metrics")
	for _, metric := range families["prometheus_http_requests_total"].GetMetric() {
		for _, label := range metric.GetLabel() {
			if label.GetName() == "handler" && strings.HasPrefix(label.GetValue(), "/api/v1/query") {
				count += int(metric.GetCounter().GetValue())
			}
		}
	}
	return count
}

// awaitActive reads the stream until it tells what is wanted.
func awaitActive(b *testing.B, stream grpc.ServerStreamingClient[externalscaler.IsActiveResponse], want bool) {
	b.Helper()
	for {
		said, err := stream.Recv()
		must(b, err, "await active %t", want)
		if said.GetResult() == want {
			return
		}
	}
}

// dialScaler is a client of the controller that leads.
func (s *scaleOut) dialScaler(b *testing.B) externalscaler.ExternalScalerClient {
	b.Helper()
	round, upgrader, err := spdy.RoundTripperFor(s.config)
	must(b, err, "make a way to pods")
	to := s.client.CoreV1().RESTClient().Post().Namespace(s.plugin.namespace).Resource("pods").
		Name(s.awaitLeader("", 0)).SubResource("portforward").URL()
	stop, ready := make(chan struct{}), make(chan struct{})
	ports, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: round}, http.MethodPost, to),
		[]string{"127.0.0.1"}, []string{"0:9443"}, stop, ready, io.Discard, io.Discard)
	must(b, err, "forward a port")
	ended := make(chan error, 1)
	go func() { ended <- ports.ForwardPorts() }()
	b.Cleanup(func() {
		close(stop)
		if err := <-ended; err != nil {
			b.Errorf("forward a port: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		b.Fatalf("forward a port: %v", err)
	}
	local, err := ports.GetPorts()
	must(b, err, "read the forwarded port")
	connection, err := grpc.NewClient(fmt.Sprintf("127.0.0.1:%d", local[0].Local), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(b, err, "make a client of the scaler")
	b.Cleanup(func() { _ = connection.Close() })
	return externalscaler.NewExternalScalerClient(connection)
}
