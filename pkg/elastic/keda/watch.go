package keda

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/externalscaler"
)

// WatchActive sends whether the target is to have replicas, at once and when that changes,
// until ctx ends or the trigger cannot be read. While it is not known nothing is sent: KEDA
// gets the reason when it asks.
func (s *Scaler) WatchActive(ctx context.Context, ref *externalscaler.ScaledObjectRef, send func(bool) error) error {
	_, t, err := s.trigger(ref)
	if err != nil {
		return err
	}
	changes, err := t.metric.changes(ctx, &s.Sources)
	if err != nil {
		return err
	}
	ticker := s.Clock.NewTicker(s.Poll)
	defer ticker.Stop()
	var sent *bool
	for {
		active, err := s.Active(ctx, ref)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
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

// WatchSpec sends by what the target is scaled, at once and when profiles have made it another,
// until ctx ends.
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
