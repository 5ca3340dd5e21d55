// Package tracing sends spans of operations and their parts to an OpenTelemetry collector. Without an
// endpoint in the environment it is off: it allocates nothing and starts no goroutine. It never delays an
// operation: spans that cannot be sent are dropped.
package tracing

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"k8s.io/klog/v2"
)

// Variables of OpenTelemetry that this package reads; the library reads the others.
const (
	endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	protocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	queueSize      = "OTEL_BSP_MAX_QUEUE_SIZE"
)

// maxQueue bounds the spans that wait for a collector, unless the environment sets another limit. A claim has
// about ten spans of a kilobyte.
const maxQueue = 512

// stopLimit bounds the time to send the last spans when a process ends.
const stopLimit = time.Second

// tracer is nil while tracing is off.
var tracer atomic.Pointer[trace.Tracer]

// Start sends the service's spans to the endpoint in the environment, if there is one. All spans have the
// attributes, which are pairs of name and value. Stop sends the remaining spans. The endpoint may be down:
// Start returns errors of the environment only.
func Start(ctx context.Context, service, version string, attributes ...string) (stop func(), err error) {
	to, err := target()
	if err != nil || to == "" {
		return func() {}, err
	}
	log := klog.FromContext(ctx)
	otel.SetErrorHandler(&losses{log: log})
	otel.SetLogger(log)
	exporter, err := otlptracegrpc.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w: correct the variables that begin with OTEL_EXPORTER_OTLP_", err)
	}
	var queue []sdktrace.BatchSpanProcessorOption
	if os.Getenv(queueSize) == "" {
		queue = append(queue, sdktrace.WithMaxQueueSize(maxQueue))
	}
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter, queue...), sdktrace.WithResource(describe(service, version, attributes)))
	begins := provider.Tracer("github.com/mica-gpu/mica", trace.WithInstrumentationVersion(version))
	tracer.Store(&begins)
	log.Info("Sending traces", "endpoint", to)
	return func() {
		tracer.Store(nil)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
		defer cancel()
		if err := provider.Shutdown(ctx); err != nil {
			otel.Handle(err)
		}
	}, nil
}

// target returns the host that gets spans; empty: none.
func target() (host string, err error) {
	if strings.EqualFold(os.Getenv("OTEL_SDK_DISABLED"), "true") || os.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return "", nil
	}
	name, value := set(tracesEndpoint, endpoint)
	if value == "" {
		return "", nil
	}
	if name, spoken := set(tracesProtocol, protocol); spoken != "" && spoken != "grpc" {
		return "", fmt.Errorf("%s is %q, which Mica does not speak: use grpc", name, spoken)
	}
	address, err := url.Parse(value)
	if err != nil || (address.Scheme != "http" && address.Scheme != "https") || address.Hostname() == "" || address.Port() == "" {
		// The value is not repeated: it may have a password.
		return "", fmt.Errorf("%s is no URL of a collector with a port: use one such as http://collector.monitoring:4317, with https for TLS", name)
	}
	return address.Host, nil
}

// set returns the first of two variables that has a value.
func set(first, second string) (name, value string) {
	if value := os.Getenv(first); value != "" {
		return first, value
	}
	return second, os.Getenv(second)
}

// describe returns the attributes of all spans. Those of the environment take precedence.
func describe(service, version string, attributes []string) *resource.Resource {
	own := []attribute.KeyValue{attribute.String("service.name", service), attribute.String("service.version", version)}
	for i := 0; i+1 < len(attributes); i += 2 {
		own = append(own, attribute.String(attributes[i], attributes[i+1]))
	}
	merged, err := resource.Merge(resource.NewSchemaless(own...), resource.Environment())
	if err != nil {
		otel.Handle(err) // merged is usable
	}
	return merged
}

// Join continues the trace of a gRPC caller, by W3C's Trace Context.
func Join(ctx context.Context) context.Context {
	if tracer.Load() == nil {
		return ctx
	}
	carrier := propagation.MapCarrier{}
	for _, field := range (propagation.TraceContext{}).Fields() {
		if values := metadata.ValueFromIncomingContext(ctx, field); len(values) > 0 {
			carrier[field] = values[0]
		}
	}
	return propagation.TraceContext{}.Extract(ctx, carrier)
}

// Span is an operation, or a part of one. The zero value is not traced.
type Span struct{ span trace.Span }

// Begin begins a span within that of ctx, and returns the context for its parts.
func Begin(ctx context.Context, name string) (context.Context, Span) {
	begins := tracer.Load()
	if begins == nil {
		return ctx, Span{}
	}
	ctx, span := (*begins).Start(ctx, name)
	return ctx, Span{span}
}

// Past records a part that has ended.
func Past(ctx context.Context, name string, begun, ended time.Time) {
	if begins := tracer.Load(); begins != nil {
		_, span := (*begins).Start(ctx, name, trace.WithTimestamp(begun))
		span.End(trace.WithTimestamp(ended))
	}
}

// On reports whether the span will be exported.
func (s Span) On() bool { return s.span != nil && s.span.IsRecording() }

// Rename changes the name of the span.
func (s Span) Rename(name string) {
	if s.On() {
		s.span.SetName(name)
	}
}

// Set adds an attribute.
func (s Span) Set(name, value string) {
	if s.On() {
		s.span.SetAttributes(attribute.String(name, value))
	}
}

// Count adds a number as an attribute.
func (s Span) Count(name string, number int) {
	if s.On() {
		s.span.SetAttributes(attribute.Int(name, number))
	}
}

// End ends the span with the error of the operation, if any. A span that has ended stays as it is.
func (s Span) End(err error) {
	if s.span == nil {
		return
	}
	if err != nil {
		s.span.RecordError(err)
		s.span.SetStatus(codes.Error, err.Error())
	}
	s.span.End()
}
