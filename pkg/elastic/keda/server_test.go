package keda

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/test/fixture"
)

var today = time.Date(2026, time.September, 1, 12, 0, 0, 0, time.UTC)

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		want    []string
	}{
		"no port":           {Options{Address: "localhost"}, []string{`"localhost"`, "give host:port"}},
		"no key":            {Options{Address: ":0", TLS: Files{Certificate: "tls.crt"}}, []string{"tls.crt", "give both files"}},
		"no certificate":    {Options{Address: ":0", TLS: Files{Key: "tls.key"}}, []string{"tls.key", "give both files"}},
		"client CA, no TLS": {Options{Address: ":0", TLS: Files{ClientCA: "ca.crt"}}, []string{"ca.crt", "without TLS"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewServer(test.options, answerer{})
			fixture.Sentence(t, err, test.want...)
		})
	}
}

func TestAnErrorHasItsWordsAndItsCode(t *testing.T) {
	gone := errors.New("Deployment/vllm does not exist in namespace ml")
	for name, test := range map[string]struct {
		err  error
		code codes.Code
		text string
	}{
		"invalid":           {invalid(errors.New("metric \"x\" is unknown")), codes.InvalidArgument, `metric "x" is unknown`},
		"of its own code":   {failure{gone, codes.NotFound}, codes.NotFound, gone.Error()},
		"unavailable":       {unavailable(errors.New("prometheus is down")), codes.Unavailable, "prometheus is down"},
		"wrapped":           {fmt.Errorf("read the target: %w", failure{gone, codes.NotFound}), codes.NotFound, "read the target: " + gone.Error()},
		"slow":              {fmt.Errorf("ask: %w", context.DeadlineExceeded), codes.DeadlineExceeded, "ask: context deadline exceeded"},
		"slow source":       {unavailable(fmt.Errorf("ask: %w", context.DeadlineExceeded)), codes.Unavailable, "ask: context deadline exceeded"},
		"of workloads":      {fmt.Errorf("Deployment/vllm %w", workload.ErrNotFound), codes.NotFound, "Deployment/vllm does not exist"},
		"of the API server": {apierrors.NewNotFound(schema.GroupResource{Resource: "deployments"}, "vllm"), codes.NotFound, `deployments "vllm" not found`},
		"unknown":           {errors.New("something else"), codes.Unknown, "something else"},
	} {
		t.Run(name, func(t *testing.T) {
			server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{metrics: func(context.Context) error { return test.err }})
			_, err := server.client(t, nil).GetMetrics(t.Context(), metricsOf("vllm"))
			if got := status.Convert(err); got.Code() != test.code || got.Message() != test.text {
				t.Errorf("got %s %q, want %s %q", got.Code(), got.Message(), test.code, test.text)
			}
		})
	}
}

func TestARequestThatNamesNothingIsRefused(t *testing.T) {
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{})
	_, err := server.client(t, nil).GetMetrics(t.Context(), &externalscaler.GetMetricsRequest{MetricName: "m"})
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("got %v, want InvalidArgument", err)
	}
}

func TestARequestThatIsTooBigIsRefused(t *testing.T) {
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{})
	ref := trigger("vllm")
	ref.ScalerMetadata["query"] = strings.Repeat("x", maxRequestBytes)
	_, err := server.client(t, nil).IsActive(t.Context(), ref)
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("got %v, want ResourceExhausted", err)
	}
}

func TestAPanicCostsItsOwnRequestOnly(t *testing.T) {
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{metrics: func(context.Context) error { panic("no such luck") }})
	client := server.client(t, nil)
	_, err := client.GetMetrics(t.Context(), metricsOf("vllm"))
	if status.Code(err) != codes.Internal || strings.Contains(err.Error(), "no such luck") {
		t.Errorf("got %v, want Internal without what is for the log", err)
	}
	if _, err := client.IsActive(t.Context(), trigger("vllm")); err != nil {
		t.Errorf("after it: %v", err)
	}
	for _, part := range []string{"no such luck", "server_test.go"} {
		if !strings.Contains(server.log.String(), part) {
			t.Errorf("the log does not have %q:\n%s", part, server.log)
		}
	}
}

func TestAnErrorIsLoggedOnceWhileItLasts(t *testing.T) {
	answer := make(chan error, 1)
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{metrics: func(context.Context) error { return <-answer }})
	client := server.client(t, nil)
	down, other := unavailable(errors.New("prometheus is down")), unavailable(errors.New("prometheus is slow"))
	const told, over = "Answered KEDA with an error", "Answered KEDA again after errors"
	for i, step := range []struct {
		name        string
		answer      error
		later       time.Duration
		told, again int
	}{
		{"vllm", nil, 0, 0, 0},
		{"vllm", down, 0, 1, 0},
		{"vllm", down, errorLasts - time.Second, 1, 0},
		{"vllm", down, errorLasts - time.Second, 1, 0},
		{"other", down, 0, 2, 0},
		{"other", nil, 0, 2, 1},
		{"vllm", other, 0, 3, 1},
		{"vllm", nil, 0, 3, 2},
		{"vllm", nil, 0, 3, 2},
		{"vllm", other, 0, 4, 2},
		{"vllm", other, errorLasts + time.Second, 5, 2},
	} {
		server.clock.Step(step.later)
		answer <- step.answer
		_, err := client.GetMetrics(t.Context(), metricsOf(step.name))
		if (err != nil) != (step.answer != nil) {
			t.Fatalf("step %d: got %v, want %v", i, err, step.answer)
		}
		if err := errors.Join(server.log.has(told, step.told), server.log.has(over, step.again)); err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
}

func TestRequestsAreCounted(t *testing.T) {
	counted := func(method, code string) float64 { return testutil.ToFloat64(requests.WithLabelValues(method, code)) }
	before := counted("GetMetrics", "NotFound")
	beforeActive := counted("IsActive", "OK")
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{metrics: func(context.Context) error { return failure{errors.New("nothing there"), codes.NotFound} }})
	client := server.client(t, nil)
	if _, err := client.GetMetrics(t.Context(), metricsOf("vllm")); err == nil {
		t.Fatal("there is no error")
	}
	if _, err := client.IsActive(t.Context(), trigger("vllm")); err != nil {
		t.Fatal(err)
	}
	if got := counted("GetMetrics", "NotFound") - before; got != 1 {
		t.Errorf("%v requests that found nothing, want 1", got)
	}
	if got := counted("IsActive", "OK") - beforeActive; got != 1 {
		t.Errorf("%v requests that were answered, want 1", got)
	}
}

// KEDA waits longer after each stream that ends otherwise.
func TestAStreamEndsInGoodOrder(t *testing.T) {
	for name, end := range map[string]func(*running) error{
		"when it is of age":        func(r *running) error { r.clock.Step(streamAge); return nil },
		"when the server stops":    func(r *running) error { return r.stop() },
		"and not before its age":   nil,
		"when its target is wrong": nil,
	} {
		t.Run(name, func(t *testing.T) {
			wrong := make(chan error, 1)
			server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{watchActive: func(ctx context.Context, send func(bool) error) error {
				if err := send(true); err != nil {
					return err
				}
				select {
				case err := <-wrong:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			}})
			stream, err := server.client(t, nil).StreamIsActive(t.Context(), trigger("vllm"))
			if err != nil {
				t.Fatal(err)
			}
			if state, err := stream.Recv(); err != nil || !state.GetResult() {
				t.Fatalf("got %v, %v; want the state at once", state, err)
			}
			want := io.EOF
			if end == nil {
				server.clock.Step(streamAge - time.Second)
				want = failure{errors.New("it is gone"), codes.NotFound}
				wrong <- want
			} else if err := end(server); err != nil {
				t.Fatal(err)
			}
			_, err = stream.Recv()
			if ends := errors.Is(err, io.EOF); ends != errors.Is(want, io.EOF) || !ends && status.Code(err) != codes.NotFound {
				t.Errorf("the stream ended with %v, want %v", err, want)
			}
		})
	}
}

func TestAClientThatLeavesIsNoError(t *testing.T) {
	ended := make(chan struct{})
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{watchActive: func(ctx context.Context, send func(bool) error) error {
		defer close(ended)
		err := untilEnd(ctx, send)
		return unavailable(fmt.Errorf("watch claims: %w", err))
	}})
	ctx, leave := context.WithCancel(t.Context())
	stream, err := server.client(t, nil).StreamIsActive(ctx, trigger("vllm"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	leave()
	<-ended
	if err := server.stop(); err != nil { // it returns after its handlers
		t.Fatal(err)
	}
	if err := server.log.has("Answered KEDA with an error", 0); err != nil {
		t.Error(err)
	}
}

func TestAStoppedServerRefusesConnections(t *testing.T) {
	server := run(t, Files{}, testingclock.NewFakeClock(today), answerer{})
	client := server.client(t, nil)
	if _, err := client.IsActive(t.Context(), trigger("vllm")); err != nil {
		t.Fatal(err)
	}
	if err := server.stop(); err != nil {
		t.Fatal(err)
	}
	_, err := client.IsActive(t.Context(), trigger("vllm"))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v, want a refused connection", err)
	}
}
