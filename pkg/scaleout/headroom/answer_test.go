package headroom

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/test/fixture"
)

// queried wants one device, and by its query up to ten.
func queried() *v1alpha1.GPUHeadroom {
	h := big(1)
	h.Spec.Query = &v1alpha1.DeviceQuery{PromQL: "sum(needed)", MaxDevices: 10}
	return h
}

func TestAQueryAsksForMoreThanIsKeptInAnyCase(t *testing.T) {
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	for name, test := range map[string]struct {
		answer Answer
		before *v1alpha1.QueryAnswer
		want   int
		next   time.Duration
	}{
		"never answered":           {Answer{}, nil, 1, 0},
		"fewer":                    {Answer{Devices: 0, At: noon}, nil, 1, kept},
		"more":                     {Answer{Devices: 4, At: ago(time.Minute)}, nil, 4, kept - time.Minute},
		"more than may be":         {Answer{Devices: 40, At: noon}, nil, 10, kept},
		"failing for a while":      {Answer{Devices: 4, At: ago(14 * time.Minute), Problem: "down"}, nil, 4, time.Minute},
		"failing for long":         {Answer{Devices: 4, At: ago(kept), Problem: "down"}, nil, 1, 0},
		"of an earlier process":    {Answer{}, &v1alpha1.QueryAnswer{Devices: 4, Time: metav1.NewTime(ago(time.Minute))}, 4, kept - time.Minute},
		"of one, and failing":      {Answer{Problem: "down"}, &v1alpha1.QueryAnswer{Devices: 4, Time: metav1.NewTime(ago(time.Minute))}, 4, kept - time.Minute},
		"of one long ago":          {Answer{}, &v1alpha1.QueryAnswer{Devices: 4, Time: metav1.NewTime(ago(time.Hour))}, 1, 0},
		"of one, and answered now": {Answer{Devices: 2, At: noon}, &v1alpha1.QueryAnswer{Devices: 4, Time: metav1.NewTime(ago(time.Minute))}, 2, kept},
		"without Prometheus":       {Answer{Problem: "nobody", Nobody: true}, nil, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := queried()
			h.Status.Query = test.before
			got, next, err := Demand(h, test.answer, devices.NewSelectors(), noon)
			if err != nil {
				t.Fatal(err)
			}
			var until time.Duration
			if !next.IsZero() {
				until = next.Sub(noon)
			}
			if got.Devices != test.want || until != test.next {
				t.Errorf("%d devices for %s, want %d for %s", got.Devices, until, test.want, test.next)
			}
		})
	}
}

func TestWithoutAQueryNoAnswerCounts(t *testing.T) {
	h := big(1)
	h.Status.Query = &v1alpha1.QueryAnswer{Devices: 4, Time: metav1.NewTime(noon)}
	meta.SetStatusCondition(&h.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionQueryAnswered, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAnswered})
	answer := Answer{Devices: 4, At: noon}
	if got, _, err := Demand(h, answer, devices.NewSelectors(), noon); err != nil || got.Devices != 1 {
		t.Errorf("%d devices are asked for (%v), want 1", got.Devices, err)
	}
	status := Status(h, answer, 1, scaleout.HeadroomDecision{Free: 1}, noon)
	if status.Query != nil || meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionQueryAnswered) != nil {
		t.Errorf("the status still has a query: %v", status)
	}
}

func TestTheConditionSaysWhatBecameOfTheQuery(t *testing.T) {
	for name, test := range map[string]struct {
		answer  Answer
		reason  string
		message string
	}{
		"answered":     {Answer{Devices: 4, At: noon}, v1alpha1.ReasonAnswered, "The query asks for 4 of at most 10 devices"},
		"not asked":    {Answer{}, v1alpha1.ReasonNotAnswered, "Prometheus has not been asked yet"},
		"kept":         {Answer{Devices: 4, At: noon.Add(-time.Minute), Problem: "it is down"}, v1alpha1.ReasonNotAnswered, "it is down; the 4 devices of the last answer are kept until 2026-10-01T12:14:00Z"},
		"not kept":     {Answer{Devices: 4, At: noon.Add(-time.Hour), Problem: "it is down"}, v1alpha1.ReasonNotAnswered, "it is down; nothing is kept for the query until it is answered"},
		"nobody to be": {Answer{Problem: "no Prometheus: set one", Nobody: true}, v1alpha1.ReasonNoPrometheus, "no Prometheus: set one; nothing is kept for the query until it is answered"},
	} {
		t.Run(name, func(t *testing.T) {
			want := metav1.Condition{
				Type: v1alpha1.ConditionQueryAnswered, Status: metav1.ConditionFalse, Reason: test.reason, Message: test.message,
				ObservedGeneration: 3, LastTransitionTime: metav1.NewTime(noon),
			}
			if test.reason == v1alpha1.ReasonAnswered {
				want.Status = metav1.ConditionTrue
			}
			for status, conditions := range map[string][]metav1.Condition{
				"planned": Status(queried(), test.answer, 1, scaleout.HeadroomDecision{Free: 1}, noon).Conditions,
				"invalid": Invalid(queried(), test.answer, "why", noon).Conditions,
			} {
				if diff := cmp.Diff(&want, meta.FindStatusCondition(conditions, v1alpha1.ConditionQueryAnswered)); diff != "" {
					t.Errorf("%s: (-want +got)\n%s", status, diff)
				}
			}
		})
	}
}

// Each write of a status wakes up all who watch it.
func TestAnAnswersTimeIsWrittenNowAndThen(t *testing.T) {
	h := queried()
	writes := 0
	for i := range 120 { // an hour of answers
		answer := Answer{Devices: 4, At: noon.Add(time.Duration(i) * 30 * time.Second)}
		status := Status(h, answer, 4, scaleout.HeadroomDecision{Free: 4}, answer.At)
		if !cmp.Equal(status, h.Status) {
			writes++
		}
		h.Status = status
		if age := answer.At.Sub(status.Query.Time.Time); age >= renewed {
			t.Fatalf("the time is %s behind", age)
		}
	}
	if writes != 12 {
		t.Errorf("the status was written %d times in an hour, want 12", writes)
	}
}

func TestDevicesAreWhole(t *testing.T) {
	q := &v1alpha1.DeviceQuery{MaxDevices: 10}
	for value, want := range map[float64]int32{-3.5: 0, 0: 0, 0.1: 1, 4: 4, 4.5: 5, 1e300: 10} {
		if got, err := Devices(q, value); err != nil || got != want {
			t.Errorf("%v is %d devices (%v), want %d", value, got, err, want)
		}
	}
	_, err := Devices(q, math.NaN())
	fixture.Sentence(t, err, "no number of devices", "divide by zero")
}
