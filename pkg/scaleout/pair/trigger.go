package pair

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/pkg/excerpt"
)

// Reasons of Cluster Autoscaler's Events about pods.
const (
	eventTriggered    = "TriggeredScaleUp"
	eventNotTriggered = "NotTriggerScaleUp"
)

const (
	autoscalerComponent = "cluster-autoscaler"
	maxTriggerMessage   = 1024
)

// Triggers are Cluster Autoscaler's last Events about each pod.
func Triggers(events []corev1.Event) map[types.UID]Trigger {
	last := map[types.UID]Trigger{}
	for i := range events {
		e := &events[i]
		if !aboutScaleUp(e) {
			continue
		}
		t := Trigger{
			Pod:       types.NamespacedName{Namespace: e.InvolvedObject.Namespace, Name: e.InvolvedObject.Name},
			Triggered: e.Reason == eventTriggered,
			At:        eventTime(e),
			Message:   excerpt.Of(e.Message, maxTriggerMessage),
		}
		if before, ok := last[e.InvolvedObject.UID]; !ok || t.supersedes(before) {
			last[e.InvolvedObject.UID] = t
		}
	}
	return last
}

// supersedes reports whether t is newer. Of two in the same second, a triggered scale-up counts: a missing node is asked for
// a moment later.
func (t Trigger) supersedes(before Trigger) bool {
	return t.At.After(before.At) || t.At.Equal(before.At) && t.Triggered && !before.Triggered
}

func aboutScaleUp(e *corev1.Event) bool {
	return (e.Reason == eventTriggered || e.Reason == eventNotTriggered) &&
		(e.Source.Component == autoscalerComponent || e.ReportingController == autoscalerComponent) &&
		e.InvolvedObject.Kind == "Pod" && e.InvolvedObject.UID != ""
}

// eventTime is when an Event last happened. The fields that are set depend on the API version of its writer.
func eventTime(e *corev1.Event) time.Time {
	last := e.LastTimestamp.Time
	others := []time.Time{e.EventTime.Time, e.FirstTimestamp.Time}
	if e.Series != nil {
		others = append(others, e.Series.LastObservedTime.Time)
	}
	for _, t := range others {
		if t.After(last) {
			last = t
		}
	}
	if last.IsZero() {
		return e.CreationTimestamp.Time
	}
	return last
}
