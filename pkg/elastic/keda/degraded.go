package keda

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Reasons of Events on a target that is scaled with one guard fewer. A guard that answers with an
// error would freeze the target: KEDA gives the autoscaler no value while one trigger has none.
const (
	// reasonHoldsAll: which replicas are in use is unknown, so that all are kept.
	reasonHoldsAll = "HoldsAllReplicas"
	// reasonHoldsNone: the devices never report it, so that only the other signals decide.
	reasonHoldsNone = "UsageNotReported"
	// reasonUncapped: for how many replicas there are devices cannot be planned.
	reasonUncapped = "ScaleUncapped"
)

// degraded is an error with a value that does no harm in place of the one that is not known.
type degraded struct {
	error
	value  float64
	reason string
}

func (d degraded) Unwrap() error { return d.error }

// degrade gives a trigger that holds replicas a value despite an error: those that there are, or
// none if the devices will never report. It asks for no replica.
func degrade(err error, all float64) error {
	if errors.Is(err, usage.ErrUntold) {
		return degraded{err, 0, reasonHoldsNone}
	}
	return degraded{err, all, reasonHoldsAll}
}

// notices writes an Event for each degraded trigger, once while it lasts.
type notices struct {
	recorder events.EventRecorder
	told     *told
}

func newNotices(recorder events.EventRecorder, c clock.PassiveClock) *notices {
	return &notices{recorder: recorder, told: newTold(c)}
}

// consequences are by reason, for the ScaledObject and the target.
var consequences = map[string]string{
	reasonHoldsAll:  "ScaledObject %s keeps all replicas of %s until it is known which are in use",
	reasonHoldsNone: "ScaledObject %s keeps no replicas of %s for the use of their devices, so that the other triggers decide",
	reasonUncapped:  "ScaledObject %s scales %s without regard to how many devices there are",
}

// report writes the Event. The words of an error change with each question, as an age does, so
// that the trigger and the reason decide whether it is repeated.
func (n *notices) report(ctx context.Context, r resolved, d degraded) {
	if !n.told.news(fmt.Sprintf("%x %s", r.id, d.reason), d.reason) {
		return
	}
	note := fmt.Sprintf(consequences[d.reason]+": %v", r.ref.GetName(), r.trigger.Target, d.error)
	klog.FromContext(ctx).Info("Scaling a workload without one of its guards", "reason", d.reason,
		"target", klog.KRef(r.target.Ref.Namespace, r.target.Ref.Name), "scaledObject", klog.KRef(r.ref.GetNamespace(), r.ref.GetName()),
		"metric", r.trigger.definition.name, "why", d.Error())
	n.recorder.Eventf(object(r.target), nil, corev1.EventTypeWarning, d.reason, "Scale", "%s", excerpt.Of(note, excerpt.MaxEvent))
}
