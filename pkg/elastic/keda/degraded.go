package keda

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/client-go/tools/events"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
)

// Reasons of Events on a target that is scaled with one guard fewer. KEDA gives the HPA no value while
// one trigger has an error, so an error here would freeze the target.
const (
	// reasonHoldsAll: it is unknown which replicas are in use, so all are kept.
	reasonHoldsAll = "HoldsAllReplicas"
	// reasonHoldsNone: the devices do not support usage, so the other triggers decide.
	reasonHoldsNone = "UsageNotReported"
	// reasonUncapped: the planner cannot count room for such pods.
	reasonUncapped = "ScaleUncapped"
)

// degraded is an error with a safe value to report instead.
type degraded struct {
	error
	value  float64
	reason string
}

func (d degraded) Unwrap() error { return d.error }

// degrade returns a safe value for a trigger that holds replicas: the present replicas, or none if the
// devices never report usage.
func degrade(err error, all float64) error {
	if errors.Is(err, usage.ErrNotReported) {
		return degraded{err, 0, reasonHoldsNone}
	}
	return degraded{err, all, reasonHoldsAll}
}

// notices writes one Event for each degraded trigger while that lasts.
type notices struct {
	recorder events.EventRecorder
	reported *reportedErrors
}

// consequences are formats for the ScaledObject and the target, by reason.
var consequences = map[string]string{
	reasonHoldsAll:  "ScaledObject %s keeps all replicas of %s until it is known which are in use",
	reasonHoldsNone: "ScaledObject %s keeps no replicas of %s for the use of their devices, so that the other triggers decide",
	reasonUncapped:  "ScaledObject %s scales %s without regard to how many devices there are",
}

// report writes the Event. The text of an error may change with each request, so the trigger and the
// reason alone decide whether it is repeated.
func (n *notices) report(ctx context.Context, r resolved, d degraded) {
	if !n.reported.isNew(fmt.Sprintf("%x %s", r.id, d.reason), d.reason) {
		return
	}
	note := fmt.Sprintf(consequences[d.reason]+": %v", r.ref.GetName(), r.trigger.Target, d.error)
	r.logger(ctx).Info("Scaling a workload without one of its guards", "reason", d.reason, "why", d.Error())
	r.warn(n.recorder, d.reason, "Scale", note)
}
