package tracing

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/collector"
)

// start starts tracing to an endpoint, and gives its log.
func start(t *testing.T, to string) (ctx context.Context, log func() string, stop func()) {
	t.Helper()
	t.Setenv(endpoint, to)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx = klog.NewContext(t.Context(), logger)
	stop, err := Start(ctx, "service", "v1", "k8s.node.name", "node-a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return ctx, logger.GetSink().(ktesting.Underlier).GetBuffer().String, stop
}

func TestSpansArrive(t *testing.T) {
	sent := collector.New(t)
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "cluster=a")
	ctx, log, stop := start(t, sent.Endpoint)
	ctx = Join(metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")))
	within, whole := Begin(ctx, "whole")
	whole.Set("name", "value")
	whole.Count("number", 7)
	_, part := Begin(within, "part")
	part.Rename("step")
	part.End(errors.New("it failed"))
	Past(within, "phase", time.Now().Add(-time.Second), time.Now())
	whole.End(nil)
	stop()
	spans := map[string]collector.Span{}
	for _, span := range sent.Spans() {
		spans[span.Name] = span
		if span.Trace != "0af7651916cd43dd8448eb211c80319c" {
			t.Errorf("%s is of the trace %s", span.Name, span.Trace)
		}
		for name, want := range map[string]string{"service.name": "service", "service.version": "v1", "k8s.node.name": "node-a", "cluster": "a"} {
			if got := span.Attributes[name]; got != want {
				t.Errorf("%s has the %s %q, want %q", span.Name, name, got, want)
			}
		}
	}
	if got := spans["whole"]; got.Parent != "b7ad6b7169203331" || got.Error != "" || got.Attributes["name"] != "value" || got.Attributes["number"] != "7" {
		t.Errorf("the whole is %+v", got)
	}
	for name, failure := range map[string]string{"step": "it failed", "phase": ""} {
		if got := spans[name]; got.Parent != spans["whole"].ID || got.Error != failure {
			t.Errorf("%s is %+v", name, got)
		}
	}
	if strings.Contains(log(), "lost") {
		t.Errorf("the log is %s", log())
	}
}

func TestSamplingIsAsTheEnvironmentSays(t *testing.T) {
	sent := collector.New(t)
	t.Setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
	t.Setenv("OTEL_TRACES_SAMPLER_ARG", "0")
	ctx, _, stop := start(t, sent.Endpoint)
	_, span := Begin(ctx, "own")
	if span.On() {
		t.Error("a trace of our own is sampled")
	}
	span.End(nil)
	_, span = Begin(Join(metadata.NewIncomingContext(ctx, metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))), "caller's")
	span.End(nil)
	stop()
	if spans := sent.Spans(); len(spans) != 1 || spans[0].Name != "caller's" {
		t.Errorf("sent were %+v", spans)
	}
}

func TestWithoutAnEndpointThereIsNothing(t *testing.T) {
	for name, environment := range map[string]map[string]string{
		"no endpoint": {},
		"disabled":    {endpoint: "http://localhost:1", "OTEL_SDK_DISABLED": "true"},
		"no exporter": {endpoint: "http://localhost:1", "OTEL_TRACES_EXPORTER": "none"},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range environment {
				t.Setenv(variable, value)
			}
			before := runtime.NumGoroutine()
			stop, err := Start(t.Context(), "service", "v1")
			if err != nil {
				t.Fatal(err)
			}
			defer stop()
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"))
			now, failure := time.Now(), errors.New("it failed")
			if allocations := testing.AllocsPerRun(100, func() {
				within, span := Begin(Join(ctx), "operation")
				span.Set("name", "value")
				span.Count("number", 1)
				span.Rename("other")
				Past(within, "phase", now, now)
				span.End(failure)
			}); allocations != 0 {
				t.Errorf("it allocates %v times", allocations)
			}
			if after := runtime.NumGoroutine(); after > before {
				t.Errorf("there are %d goroutines, and were %d", after, before)
			}
		})
	}
}

func TestBadEndpoints(t *testing.T) {
	for name, tc := range map[string]struct {
		environment map[string]string
		want        []string
	}{
		"no scheme":      {map[string]string{endpoint: "collector:4317"}, []string{endpoint + " is no URL", "use one such as http://"}},
		"no port":        {map[string]string{endpoint: "http://collector"}, []string{endpoint + " is no URL", "with a port", ":4317"}},
		"no host":        {map[string]string{tracesEndpoint: "http://"}, []string{tracesEndpoint + " is no URL"}},
		"not a URL":      {map[string]string{endpoint: "http://a b:hunter2@"}, []string{endpoint + " is no URL"}},
		"by HTTP":        {map[string]string{endpoint: "http://a:1", protocol: "http/protobuf"}, []string{protocol, `"http/protobuf"`, "use grpc"}},
		"traces by HTTP": {map[string]string{endpoint: "http://a:1", tracesProtocol: "http/json"}, []string{tracesProtocol, "use grpc"}},
	} {
		t.Run(name, func(t *testing.T) {
			for variable, value := range tc.environment {
				t.Setenv(variable, value)
			}
			_, err := Start(t.Context(), "service", "v1")
			fixture.Sentence(t, err, tc.want...)
			if strings.Contains(err.Error(), "hunter2") {
				t.Errorf("%v shows a password", err)
			}
		})
	}
}

// A collector that takes connections and never answers, and one that does not run, hold nothing up.
func TestACollectorThatIsDownCostsALine(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	for name, to := range map[string]string{"silent": "http://" + listener.Addr().String(), "down": "http://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
			t.Setenv("OTEL_BSP_EXPORT_TIMEOUT", "500")
			ctx, log, stop := start(t, to)
			const spans = 40 * maxQueue
			begun := time.Now()
			for range spans {
				_, span := Begin(ctx, "operation")
				span.End(nil)
			}
			if took := time.Since(begun); took > 10*time.Second { // one export takes half a second: in turn they would take 20
				t.Errorf("%d spans took %v", spans, took)
			}
			fixture.Eventually(t, "the line", func() error {
				if !strings.Contains(log(), "Traces are lost") {
					return errors.New("the log is " + log())
				}
				return nil
			})
			begun = time.Now()
			stop()
			if took := time.Since(begun); took > 10*stopLimit {
				t.Errorf("the end took %v", took)
			}
			if lines := strings.Count(log(), "Traces are lost"); lines != 1 {
				t.Errorf("the log has %d lines of it:\n%s", lines, log())
			}
		})
	}
}
