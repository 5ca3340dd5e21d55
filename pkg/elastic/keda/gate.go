package keda

import (
	"context"
	"fmt"

	"google.golang.org/grpc/codes"
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
	s.Gates.Serve(ctx, r.target, count, "ScaledObject "+r.ref.GetName())
}

// ungated is the error of a trigger whose target could have no standbys.
func ungated(t *Trigger) error {
	return failure{fmt.Errorf("%s %d keeps pods of %s behind a readiness gate that they do not have: add the conditionType mica.gpu/serving to readinessGates of its pod template, or leave %s out",
		keyWarm, t.Warm, t.Target, keyWarm), codes.FailedPrecondition}
}
