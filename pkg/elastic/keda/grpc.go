package keda

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// scaler answers requests about one trigger of one ScaledObject. Users see its errors; failure adds
// their gRPC code. Calls are concurrent.
type scaler interface {
	Spec(context.Context, *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error)
	Metrics(context.Context, *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error)
	Active(context.Context, *externalscaler.ScaledObjectRef) (bool, error)
	// WatchActive sends the state at once and after each change, until ctx ends.
	WatchActive(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(bool) error) error
	// WatchSpec sends the spec at once and after each change, until ctx ends.
	WatchSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(*externalscaler.GetMetricSpecResponse) error) error
}

// grpcService adapts a scaler to KEDA's protocol.
type grpcService struct {
	externalscaler.UnimplementedExternalScalerServer
	scaler scaler
	calls  *calls
	clock  clock.WithDelayedExecution
	// serving ends when the server shuts down.
	serving context.Context
}

func newGRPCService(serving context.Context, a scaler, c clock.WithDelayedExecution) *grpcService {
	return &grpcService{scaler: a, calls: &calls{klog.FromContext(serving), newReportedErrors(c)}, clock: c, serving: serving}
}

func (s *grpcService) IsActive(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.IsActiveResponse, error) {
	return ask(ctx, s, "IsActive", ref, func(ctx context.Context) (*externalscaler.IsActiveResponse, error) {
		active, err := s.scaler.Active(ctx, ref)
		return &externalscaler.IsActiveResponse{Result: active}, err
	})
}

func (s *grpcService) GetMetricSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	return ask(ctx, s, "GetMetricSpec", ref, func(ctx context.Context) (*externalscaler.GetMetricSpecResponse, error) {
		return s.scaler.Spec(ctx, ref)
	})
}

func (s *grpcService) GetMetrics(ctx context.Context, request *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	return ask(ctx, s, "GetMetrics", request.GetScaledObjectRef(), func(ctx context.Context) (*externalscaler.GetMetricsResponse, error) {
		return s.scaler.Metrics(ctx, request)
	})
}

func (s *grpcService) StreamIsActive(ref *externalscaler.ScaledObjectRef, stream externalscaler.ExternalScaler_StreamIsActiveServer) error {
	return s.watch(stream.Context(), "StreamIsActive", ref, func(ctx context.Context, sent func()) error {
		return s.scaler.WatchActive(ctx, ref, func(active bool) error {
			return after(stream.Send(&externalscaler.IsActiveResponse{Result: active}), sent)
		})
	})
}

func (s *grpcService) StreamMetricSpec(ref *externalscaler.ScaledObjectRef, stream externalscaler.ExternalScaler_StreamMetricSpecServer) error {
	return s.watch(stream.Context(), "StreamMetricSpec", ref, func(ctx context.Context, sent func()) error {
		return s.scaler.WatchSpec(ctx, ref, func(spec *externalscaler.GetMetricSpecResponse) error {
			return after(stream.Send(spec), sent)
		})
	})
}

// after calls next unless there is an error.
func after(err error, next func()) error {
	if err == nil {
		next()
	}
	return err
}

// ask executes a request within requestTimeout.
func ask[Answer any](ctx context.Context, s *grpcService, method string, ref *externalscaler.ScaledObjectRef, question func(context.Context) (*Answer, error)) (answer *Answer, err error) {
	since := s.clock.Now()
	err = s.calls.run(ctx, method, ref, func(ctx context.Context, _ func()) (err error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		answer, err = question(ctx)
		if ctx.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %s: %w", requestTimeout, err)
		}
		return err
	})
	requestSeconds.WithLabelValues(method).Observe(s.clock.Since(since).Seconds())
	if err != nil {
		return nil, err
	}
	return answer, nil
}

// errStreamOver is the cause of a stream's orderly end.
var errStreamOver = errors.New("the stream has ended")

// watch ends a stream in order after streamAge and at shutdown, because KEDA reconnects sooner then.
func (s *grpcService) watch(ctx context.Context, method string, ref *externalscaler.ScaledObjectRef, watch func(ctx context.Context, sent func()) error) error {
	return s.calls.run(ctx, method, ref, func(ctx context.Context, answered func()) error {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer s.clock.AfterFunc(streamAge, func() { cancel(errStreamOver) }).Stop()
		defer context.AfterFunc(s.serving, func() { cancel(errStreamOver) })()

		err := watch(ctx, answered)
		if errors.Is(context.Cause(ctx), errStreamOver) {
			err = nil
		}
		return err
	})
}
