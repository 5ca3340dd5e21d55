//go:build e2e

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
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
