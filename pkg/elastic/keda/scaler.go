package keda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Sources provide the values of metrics.
type Sources struct {
	Workloads Workloads
	Usages    Usages
	Forecast  Forecast
	// Prometheus is nil if triggers may not query one.
	Prometheus Prometheus
}

// ScalerOptions configure a Scaler.
type ScalerOptions struct {
	Sources
	Profiles Profiles
	// Gates opens the readiness gates of targets whose pods have them.
	Gates Gates
	// Costs writes which replica is deleted first.
	Costs Costs
	// Recorder writes Events on targets.
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Poll is the interval at which activity streams check metrics without change signals; 0: 5 s.
	Poll time.Duration
}

// Scaler answers KEDA's requests about triggers.
type Scaler struct {
	ScalerOptions
	capEvents *capEvents
	notices   *notices
	warm      *warmTargets
}

const defaultPoll = 5 * time.Second

// NewScaler starts nothing.
func NewScaler(o ScalerOptions) *Scaler {
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	return &Scaler{
		ScalerOptions: o,
		capEvents:     newCapEvents(o.Recorder, o.Clock),
		notices:       &notices{o.Recorder, newReportedErrors(o.Clock)},
		warm:          &warmTargets{known: lru.New(mostTargets)},
	}
}

// Collectors returns the metrics of this scaler; those of the process are in Metrics.
func (s *Scaler) Collectors() []prometheus.Collector {
	return []prometheus.Collector{s.capEvents.gauge()}
}

// invalidSpec is the metric of an invalid trigger. KEDA only logs errors of GetMetricSpec, but shows
// those of GetMetrics, which it calls for each metric of the spec.
const invalidSpec = "mica-invalid"

// Spec returns the metric and the threshold.
func (s *Scaler) Spec(_ context.Context, ref *externalscaler.ScaledObjectRef) (*externalscaler.GetMetricSpecResponse, error) {
	name, threshold := invalidSpec, 1.0
	if t, err := s.trigger(ref); err == nil {
		name, threshold = t.definition.spec, t.Threshold
	}
	return &externalscaler.GetMetricSpecResponse{MetricSpecs: []*externalscaler.MetricSpec{{
		MetricName: name, TargetSize: whole(threshold), TargetSizeFloat: threshold,
	}}}, nil
}

// Metrics returns the value under the requested name: after a correction of a trigger, KEDA uses the
// former name until it has the new spec.
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

// resolved is a trigger with the state of its target.
type resolved struct {
	ref     *externalscaler.ScaledObjectRef
	id      identity
	trigger *Trigger
	// target is nil if the trigger has none.
	target *workload.State
}

func (s *Scaler) resolve(ctx context.Context, ref *externalscaler.ScaledObjectRef) (resolved, error) {
	t, err := s.trigger(ref)
	if err != nil {
		return resolved{}, err
	}
	r := resolved{ref: ref, id: identify(ref), trigger: t}
	if t.Target != nil {
		state, err := s.Workloads.Workload(ctx, *t.Target)
		if err != nil {
			return resolved{}, err
		}
		r.target = &state
		if s.Costs != nil {
			s.Costs.Scaled(*t.Target)
		}
		if t.Warm > 0 && !state.Gated {
			return resolved{}, ungated(t)
		}
		if err := gatesOfAll(&state); err != nil {
			return resolved{}, err
		}
	}
	return r, nil
}

// value returns the metric's value and the value to report: with standbys, and at most what there can
// be devices for.
func (s *Scaler) value(ctx context.Context, r resolved) (wanted, allowed float64, err error) {
	wanted, err = s.load(ctx, r)
	s.serve(ctx, r, wanted)
	if err != nil {
		return 0, 0, err
	}
	reported := r.held(wanted + float64(r.trigger.Warm)*r.trigger.Threshold)
	if r.target == nil || !r.target.Claims {
		return wanted, reported, nil
	}
	allowed, err = s.allowed(ctx, r, reported)
	return wanted, allowed, err
}

// load returns the metric's value.
func (s *Scaler) load(ctx context.Context, r resolved) (wanted float64, err error) {
	wanted, err = r.trigger.metric.value(ctx, &s.Sources, r.target)
	if err != nil && r.trigger.Holds && ctx.Err() == nil {
		err = degrade(err, float64(r.target.Replicas)*r.trigger.Threshold)
	}
	if instead, is := errors.AsType[degraded](err); is {
		s.notices.report(ctx, r, instead)
		wanted, err = instead.value, nil
	}
	if err != nil {
		return 0, err
	}
	if math.IsNaN(wanted) || math.IsInf(wanted, 0) {
		return 0, unavailable(fmt.Errorf("metric %s is %v, not a finite number", r.trigger.definition.name, wanted))
	}
	wanted = max(wanted, 0)
	if r.trigger.definition.guards {
		waits := slices.ContainsFunc(r.target.Pods, func(pod workload.Pod) bool { return pod.Pending > 0 })
		if waits || r.trigger.loading(r.target, s.Clock.Now()) {
			wanted = max(wanted, r.trigger.Threshold)
		}
	}
	return wanted, nil
}

// held caps the value of a trigger that holds replicas. The HPA computes ⌈value ÷ threshold⌉ replicas,
// so the cap is the present number of replicas, not of pods: a rollout has more pods.
func (r resolved) held(wanted float64) float64 {
	if !r.trigger.Holds {
		return wanted
	}
	return min(wanted, float64(r.target.Replicas)*r.trigger.Threshold)
}

// Active reports whether the target should have replicas at all.
func (s *Scaler) Active(ctx context.Context, ref *externalscaler.ScaledObjectRef) (bool, error) {
	r, err := s.resolve(ctx, ref)
	if err != nil {
		return false, err
	}
	if r.trigger.loading(r.target, s.Clock.Now()) {
		return true, nil
	}
	wanted, allowed, err := s.value(ctx, r)
	// A cap above 0 does not deactivate a target, even if it is below the activation threshold.
	return (wanted > r.trigger.Activation || r.trigger.Warm > 0) && allowed > 0, err
}

// whole fills the integer field for clients that predate the float field. It rounds up, because 0
// means idle.
func whole(value float64) int64 { return int64(min(math.Ceil(value), math.MaxInt32)) }
