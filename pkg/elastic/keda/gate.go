package keda

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// serve has so many gates of the target open as there is work for: what KEDA has given it
// replicas for, less the standbys, and at once what the load asks for now. wanted is 0 where the
// load is not known. A gate that is open stays so.
func (s *Scaler) serve(ctx context.Context, r resolved, wanted float64) {
	if r.target == nil || !r.target.Gated {
		return
	}
	count := int(r.target.Replicas) - r.trigger.Warm
	if r.trigger.definition.load && !r.trigger.Holds && wanted > r.trigger.Activation {
		count = max(count, replicas(wanted, r.trigger.Threshold))
	}
	s.Gates.Serve(ctx, leading(r.target), count, "ScaledObject "+r.ref.GetName())
}

// leading is the target with one pod of each replica: that which has the gate.
func leading(target *workload.State) *workload.State {
	if len(target.Gang) == 0 {
		return target
	}
	of := *target
	of.Pods = slices.DeleteFunc(slices.Clone(target.Pods), func(pod workload.Pod) bool { return pod.Follows })
	return &of
}

// gatesOfAll is the error of a gang that would open by halves; nil where there is none.
func gatesOfAll(target *workload.State) error {
	if len(target.Gang) == 0 || !slices.ContainsFunc(target.Gang[1:], func(m workload.Member) bool { return m.Gated }) {
		return nil
	}
	return failure{fmt.Errorf("other pods of %s than the leaders have the readiness gate mica.gpu/serving, which is opened for the leaders alone: give the leaders a template of their own with the gate, and take it from the workers'",
		target.Ref), codes.FailedPrecondition}
}

// ungated is the error of a trigger whose target could have no standbys.
func ungated(t *Trigger) error {
	return failure{fmt.Errorf("%s %d keeps pods of %s behind a readiness gate that they do not have: add the conditionType mica.gpu/serving to readinessGates of its pod template, or leave %s out",
		keyWarm, t.Warm, t.Target, keyWarm), codes.FailedPrecondition}
}
