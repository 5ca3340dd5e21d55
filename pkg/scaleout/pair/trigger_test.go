package pair

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/go-cmp/cmp"
)

func TestTriggers(t *testing.T) {
	at := func(seconds int) metav1.Time { return metav1.NewTime(epoch.Add(time.Duration(seconds) * time.Second)) }
	event := func(uid, reason string, change func(*corev1.Event)) corev1.Event {
		e := corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: uid, UID: types.UID(uid)},
			Reason:         reason, Source: corev1.EventSource{Component: "cluster-autoscaler"},
		}
		change(&e)
		return e
	}
	last := func(seconds int) func(*corev1.Event) {
		return func(e *corev1.Event) { e.LastTimestamp = at(seconds) }
	}
	got := Triggers([]corev1.Event{
		event("refused-later", eventTriggered, last(10)),
		event("refused-later", eventNotTriggered, last(20)),
		event("same-second", eventNotTriggered, last(10)),
		event("same-second", eventTriggered, last(10)),
		event("same-second", eventNotTriggered, last(10)),
		event("series", eventNotTriggered, func(e *corev1.Event) {
			e.Source.Component, e.ReportingController = "", "cluster-autoscaler"
			e.EventTime = metav1.NewMicroTime(at(5).Time)
			e.Series = &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(at(30).Time)}
		}),
		event("only-created", eventNotTriggered, func(e *corev1.Event) { e.CreationTimestamp = at(7) }),
		event("forged", eventNotTriggered, func(e *corev1.Event) { e.Source.Component = "me" }),
		event("node", eventTriggered, func(e *corev1.Event) { e.InvolvedObject.Kind = "Node" }),
		event("other", "FailedScheduling", last(10)),
	})
	pod := func(name string, triggered bool, seconds int) Trigger {
		return Trigger{Pod: types.NamespacedName{Namespace: "ns", Name: name}, Triggered: triggered, At: at(seconds).Time}
	}
	want := map[types.UID]Trigger{
		"refused-later": pod("refused-later", false, 20),
		"same-second":   pod("same-second", true, 10),
		"series":        pod("series", false, 30),
		"only-created":  pod("only-created", false, 7),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("- is expected:\n%s", diff)
	}
}
