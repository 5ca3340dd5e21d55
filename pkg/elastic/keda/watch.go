package keda

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// WatchActive sends whether the target should have replicas, at once and after each change, until ctx
// ends or the trigger is invalid. While the answer is unknown it sends nothing; KEDA gets the error
// from its polls. KEDA uses the stream for activation only, so nothing is computed while the target
// has replicas. Passive metrics never send: KEDA would activate the target whatever the formula gives.
func (s *Scaler) WatchActive(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(bool) error) error {
	t, err := s.trigger(ref)
	if err != nil {
		return err
	}
	if t.definition.passive {
		<-ctx.Done()
		return ctx.Err()
	}
	changes, err := t.metric.changes(ctx, &s.Sources)
	if err != nil {
		return err
	}
	ticker := s.Clock.NewTicker(s.Poll)
	defer ticker.Stop()
	var sent *bool
	for {
		idle, err := s.idle(ctx, t)
		active := false
		if idle {
			active, err = s.Active(ctx, ref)
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && !idle:
			sent = nil
		case status.Code(err) == codes.InvalidArgument:
			return err
		case err != nil:
			klog.FromContext(ctx).V(4).Info("Cannot decide whether to activate the target", "scaledObject", klog.KRef(ref.GetNamespace(), ref.GetName()), "err", err)
		case sent == nil || *sent != active:
			if err := send(active); err != nil {
				return err
			}
			sent = &active
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, more := <-changes:
			if !more {
				changes = nil
			}
		case <-ticker.C():
		}
	}
}

// idle reports whether the target has no replicas, or is unknown.
func (s *Scaler) idle(ctx context.Context, t *Trigger) (bool, error) {
	if t.Target == nil {
		return true, nil
	}
	target, err := s.Workloads.Workload(ctx, *t.Target)
	return target.Replicas == 0, err
}

// WatchSpec sends the spec at once and after changes of profiles, until ctx ends.
func (s *Scaler) WatchSpec(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(*externalscaler.GetMetricSpecResponse) error) error {
	var sent *externalscaler.GetMetricSpecResponse
	for {
		changed := s.Profiles.Changed()
		spec, err := s.Spec(ctx, ref)
		if err != nil {
			return err
		}
		if sent == nil || !proto.Equal(sent, spec) {
			if err := send(spec); err != nil {
				return err
			}
			sent = spec
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
