package keda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"

	"github.com/mica-gpu/mica/api/externalscaler"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Sources are what knows the figures.
type Sources struct {
	Workloads Workloads
	Usages    Usages
	Forecast  Forecast
	// Prometheus is nil where there is none to ask.
	Prometheus Prometheus
}

// ScalerOptions are what a Scaler is made of.
type ScalerOptions struct {
	Sources
	Profiles Profiles
	// Gates are opened for targets whose pods have them.
	Gates Gates
	// Costs is nil where nobody says which replica goes first.
	Costs Costs
	// Recorder writes Events on targets.
	Recorder events.EventRecorder
	Clock    clock.WithTicker
	// Poll is how often a stream of activity looks at what does not tell of its changes; 0: 5 s.
	Poll time.Duration
}

// Scaler answers what KEDA asks of triggers.
type Scaler struct {
	ScalerOptions
	capEvents *capEvents
	notices   *notices
	warm      *warmTargets

	mu sync.Mutex
	// known are triggers that were read, or why they could not be, by what they say: KEDA sends
	// a trigger with each question. They hold until stale is closed.
	known *lru.Cache
	stale <-chan struct{}
}

const defaultPoll = 5 * time.Second

// NewScaler does nothing yet.
func NewScaler(o ScalerOptions) *Scaler {
	if o.Poll == 0 {
		o.Poll = defaultPoll
	}
	return &Scaler{ScalerOptions: o, capEvents: newCapEvents(o.Recorder, o.Clock), notices: newNotices(o.Recorder, o.Clock), warm: newWarmTargets()}
}

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

// resolved is a trigger with the state of its target.
type resolved struct {
	ref     *externalscaler.ScaledObjectRef
	id      identity
	trigger *Trigger
	// target is nil where the trigger has none.
	target *workload.State
}

func (s *Scaler) resolve(ctx context.Context, ref *externalscaler.ScaledObjectRef) (resolved, error) {
	id, t, err := s.trigger(ref)
	if err != nil {
		return resolved{}, err
	}
	r := resolved{ref: ref, id: id, trigger: t}
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

// value is what the metric says, and what of it, and of the standbys beside it, may be reported:
// no more than there can be devices for.
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

// load is what the metric says.
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
		return 0, unavailable(fmt.Errorf("metric %s gives %v, which is no number of anything", r.trigger.definition.name, wanted))
	}
	// Less than nothing is asked for by no replica.
	wanted = max(wanted, 0)
	if r.trigger.definition.guards && r.trigger.arriving(r.target, s.Clock.Now()) {
		wanted = max(wanted, r.trigger.Threshold)
	}
	return wanted, nil
}

// held is what a trigger that holds may say. The HorizontalPodAutoscaler wants ⌈value ÷ threshold⌉
// replicas, so the value is at most that of the replicas that there are to be. Pods would be the
// wrong number: in a roll-out there are more of them, and each would ask to stay.
func (r resolved) held(wanted float64) float64 {
	if !r.trigger.Holds {
		return wanted
	}
	return min(wanted, float64(r.target.Replicas)*r.trigger.Threshold)
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
	return (wanted > r.trigger.Activation || r.trigger.Warm > 0) && allowed > 0, err
}

// whole is for who reads the field of a contract before fractions: a little is not nothing.
func whole(value float64) int64 { return int64(min(math.Ceil(value), math.MaxInt32)) }
