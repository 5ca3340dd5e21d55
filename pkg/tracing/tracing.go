// Package tracing tells an OpenTelemetry collector how long the parts of an operation take. It is off
// until Start finds an endpoint in the environment: then nothing is allocated, and no goroutine runs. It
// never delays what it tells of: spans that cannot be sent are dropped.
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

// Variables of OpenTelemetry that are looked at here; its library reads the others.
const (
	endpoint       = "OTEL_EXPORTER_OTLP_ENDPOINT"
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	protocol       = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesProtocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	queueSize      = "OTEL_BSP_MAX_QUEUE_SIZE"
)

// maxQueue is how many spans wait for a collector, unless the environment says otherwise. A claim has
// some ten, of about a kilobyte each.
const maxQueue = 512

// stopLimit bounds how long the end of a process waits for the last spans.
const stopLimit = time.Second

// tracer is nil while tracing is off.
var tracer atomic.Pointer[trace.Tracer]

// Start sends spans of this process to the endpoint that the environment names, if any, as the service.
// Attributes are pairs of name and value that all spans have. Stop sends what is left. The endpoint may be
// down. Errors are those of the environment.
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

// target is the host that gets spans, empty for none.
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

// set is the first of two variables that has a value.
func set(first, second string) (name, value string) {
	if value := os.Getenv(first); value != "" {
		return first, value
	}
	return second, os.Getenv(second)
}

// describe says whose spans they are. What the environment says of it goes first.
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

// Join takes up the trace of whoever calls by gRPC, as W3C's Trace Context has it.
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

// Span is an operation, or a part of one. The zero value is that of an operation which is not traced.
type Span struct{ span trace.Span }

// Begin begins a span within that of ctx, and gives the context of its parts.
func Begin(ctx context.Context, name string) (context.Context, Span) {
	begins := tracer.Load()
	if begins == nil {
		return ctx, Span{}
	}
	ctx, span := (*begins).Start(ctx, name)
	return ctx, Span{span}
}

// Past tells of a part that is over.
func Past(ctx context.Context, name string, begun, ended time.Time) {
	if begins := tracer.Load(); begins != nil {
		_, span := (*begins).Start(ctx, name, trace.WithTimestamp(begun))
		span.End(trace.WithTimestamp(ended))
	}
}

// On reports whether the span will be exported.
func (s Span) On() bool { return s.span != nil && s.span.IsRecording() }

// Rename gives the span another name than it began with.
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

// Count adds an attribute that is a number.
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
