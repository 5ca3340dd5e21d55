package keda

import (
	"context"
	"math"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// invalidSpec is the metric of a trigger that cannot be read. KEDA only logs an error of this
// question; it shows that of a question for the metric, which it asks where there is one.
const invalidSpec = "mica-invalid"

// Spec says by what KEDA has the target scaled.
func (s *Scaler) Spec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	name, threshold := invalidSpec, 1.0
	if _, t, err := s.trigger(ref); err == nil {
		name, threshold = t.definition.spec, t.Threshold
	}
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{
		MetricName: name, TargetSize: whole(threshold), TargetSizeFloat: threshold,
	}}}, nil
}

// Metrics says how much there is to do, in all. It is given for the metric that is asked for: a
// trigger that was corrected is asked by its former name until KEDA has the new one.
func (s *Scaler) Metrics(ctx context.Context, request *externalscaler.GetMetricsRequest) (*externalscaler.GetMetricsResponse, error) {
	r, err := s.resolve(ctx, request.GetScaledObjectRef())
	if err != nil {
		return nil, err
	}
	_, allowed, err := s.value(ctx, r)
	if err != nil {
		return nil, err
	}
	return &externalscaler.GetMetricsResponse{MetricValues: []*externalscaler.MetricValue{{
		MetricName: request.GetMetricName(), MetricValue: whole(allowed), MetricValueFloat: allowed,
	}}}, nil
}

// Active says whether the target is to have replicas at all.
func (s *Scaler) Active(ctx context.Context, ref *externalscaler.ScaledObjectRef) (bool, error) {
	r, err := s.resolve(ctx, ref)
	if err != nil {
		return false, err
	}
	if r.trigger.loading(r.target, s.Clock.Now()) {
		return true, nil
	}
	wanted, allowed, err := s.value(ctx, r)
	// A cap leaves fewer replicas, and only where there can be none it leaves none: what is
	// above a threshold that is higher than the cap is active.
	return wanted > r.trigger.Activation && allowed > 0, err
}

// whole is for who reads the field of a contract before fractions: a little is not nothing.
func whole(value float64) int64 { return int64(min(math.Ceil(value), math.MaxInt32)) }
