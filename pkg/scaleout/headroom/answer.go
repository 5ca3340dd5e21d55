package headroom

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

const (
	// kept is how long an answer counts: what was right a quarter of an hour ago is better than
	// nodes that go and come again because Prometheus was restarted.
	kept = 15 * time.Minute
	// renewed is how old the time in the status becomes before it is written again. It is for the
	// next leader; this one remembers it exactly.
	renewed = 5 * time.Minute
)

// Answer is what Prometheus says to a headroom's query.
type Answer struct {
	// Devices are those of the last answer, at the time At; zero: there was none.
	Devices int32
	At      time.Time
	// Problem is why the query was not answered since then, in a sentence; empty where it was.
	Problem string
	// Nobody tells that there is no Prometheus to ask.
	Nobody bool
}

// Devices are those that a value of a query asks for. Part of a device is a device, and a difference
// below 0 asks for none.
func Devices(q *v1alpha1.DeviceQuery, value float64) (int32, error) {
	if math.IsNaN(value) {
		return 0, fmt.Errorf("the query gives %v, which is no number of devices: see that it does not divide by zero", value)
	}
	return int32(min(max(math.Ceil(value), 0), float64(q.MaxDevices))), nil
}

// known is the answer, or what the status has of an earlier process.
func (a Answer) known(h *v1alpha1.GPUHeadroom) Answer {
	if before := h.Status.Query; before != nil && a.At.IsZero() {
		a.Devices, a.At = before.Devices, before.Time.Time
	}
	return a
}

// asked is how many devices the query asks for, and until when if nothing else is heard; zero: it
// asks for none.
func (a Answer) asked(h *v1alpha1.GPUHeadroom, now time.Time) (int, time.Time) {
	if h.Spec.Query == nil {
		return 0, time.Time{}
	}
	a = a.known(h)
	until := a.At.Add(kept)
	if a.At.IsZero() || !now.Before(until) {
		return 0, time.Time{}
	}
	return int(min(a.Devices, h.Spec.Query.MaxDevices)), until
}

// report says in the status what became of the query.
func (a Answer) report(status *v1alpha1.GPUHeadroomStatus, h *v1alpha1.GPUHeadroom, now time.Time) {
	if h.Spec.Query == nil {
		status.Query = nil
		meta.RemoveStatusCondition(&status.Conditions, v1alpha1.ConditionQueryAnswered)
		return
	}
	a = a.known(h)
	if !a.At.IsZero() && (status.Query == nil || status.Query.Devices != a.Devices || a.At.Sub(status.Query.Time.Time) >= renewed) {
		status.Query = &v1alpha1.QueryAnswer{Devices: a.Devices, Time: metav1.NewTime(a.At)}
	}
	meta.SetStatusCondition(&status.Conditions, a.condition(h, now))
}

func (a Answer) condition(h *v1alpha1.GPUHeadroom, now time.Time) metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionQueryAnswered, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonNotAnswered,
		ObservedGeneration: h.Generation, LastTransitionTime: metav1.NewTime(now),
	}
	if a.Nobody {
		c.Reason = v1alpha1.ReasonNoPrometheus
	}
	devices, until := a.asked(h, now)
	switch {
	case a.Problem == "" && !until.IsZero():
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonAnswered
		c.Message = fmt.Sprintf("The query asks for %d of at most %d devices", devices, h.Spec.Query.MaxDevices)
	case a.Problem == "":
		c.Message = "Prometheus has not been asked yet"
	case !until.IsZero():
		c.Message = fmt.Sprintf("%s; the %d devices of the last answer are kept until %s", a.Problem, devices, until.UTC().Format(time.RFC3339))
	default:
		c.Message = a.Problem + "; nothing is kept for the query until it is answered"
	}
	c.Message = excerpt.Of(c.Message, maxMessage)
	return c
}
