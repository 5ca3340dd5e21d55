package keda

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// answerer answers by its functions, and by default with one metric.
type answerer struct {
	metrics     func(context.Context) error
	watchActive func(ctx context.Context, send func(bool) error) error
}

func (a answerer) Spec(context.Context, *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{MetricName: "m", TargetSize: 1, TargetSizeFloat: 1}}}, nil
}

func (a answerer) Metrics(ctx context.Context, _ *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	if a.metrics != nil {
		if err := a.metrics(ctx); err != nil {
			return nil, err
		}
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{{MetricName: "m", MetricValue: 2, MetricValueFloat: 2}}}, nil
}

func (a answerer) Active(context.Context, *externalscaler.ScaledObjectRef) (bool, error) {
	return true, nil
}

func (a answerer) WatchActive(ctx context.Context, _ *externalscaler.ScaledObjectRef, send func(bool) error) error {
	if a.watchActive != nil {
		return a.watchActive(ctx, send)
	}
	return untilEnd(ctx, send)
}

func (a answerer) WatchSpec(ctx context.Context, _ *externalscaler.ScaledObjectRef, send func(*externalscaler.GetMetricSpecResponse) error) error {
	return untilEnd(ctx, func(bool) error { return send(&externalscaler.GetMetricSpecResponse{}) })
}

// untilEnd sends a state that does not change, and waits.
func untilEnd(ctx context.Context, send func(bool) error) error {
	if err := send(true); err != nil {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

// record is a log that a test reads while the server writes.
type record struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.String()
}

// running is a server that was started.
type running struct {
	address string
	log     *record
	clock   *testingclock.FakeClock
	// stop ends the server, and returns the error of Start.
	stop func() error
}

// run starts a server and waits until it listens; the test's end stops it.
func run(t *testing.T, files Files, clock *testingclock.FakeClock, a scaler) *running {
	t.Helper()
	r := begin(t, files, clock, a)
	select {
	case address := <-r.listens:
		r.address = address.String()
	case err := <-r.ended:
		t.Fatalf("the server ended before it listened: %v", err)
	}
	return &r.running
}

// beginning is a server that need not listen yet.
type beginning struct {
	running
	listens chan net.Addr
	ended   chan error
}

func begin(t *testing.T, files Files, clock *testingclock.FakeClock, a scaler) *beginning {
	t.Helper()
	r := &beginning{listens: make(chan net.Addr, 1), ended: make(chan error, 1)}
	r.log, r.clock = &record{}, clock
	server, err := NewServer(Options{
		Address:   "127.0.0.1:0",
		TLS:       files,
		Clock:     clock,
		Listening: func(address net.Addr) { r.listens <- address },
	}, a)
	if err != nil {
		t.Fatal(err)
	}
	logger := textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(r.log)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), logger))
	go func() { r.ended <- server.Start(ctx) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-r.ended })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// client is of a connection that ends with the test.
func (r *running) client(t *testing.T, security credentials.TransportCredentials) externalscaler.ExternalScalerClient {
	t.Helper()
	if security == nil {
		security = insecure.NewCredentials()
	}
	connection, err := grpc.NewClient(r.address, grpc.WithTransportCredentials(security))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := connection.Close(); err != nil {
			t.Error(err)
		}
	})
	return externalscaler.NewExternalScalerClient(connection)
}

func trigger(name string) *externalscaler.ScaledObjectRef {
	return &externalscaler.ScaledObjectRef{Namespace: "ml", Name: name, ScalerMetadata: map[string]string{"metric": "m"}}
}

func metricsOf(name string) *externalscaler.GetMetricsRequest {
	return &externalscaler.GetMetricsRequest{ScaledObjectRef: trigger(name), MetricName: "m"}
}

// has returns an error unless the log has the text that many times.
func (r *record) has(text string, times int) error {
	if got := bytes.Count([]byte(r.String()), []byte(text)); got != times {
		return fmt.Errorf("the log has %q %d times, want %d:\n%s", text, got, times, r)
	}
	return nil
}
