package view

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
)

// What Cluster Autoscaler has asked for is remembered while it reports nothing, and counts for as long as a
// node may take. That there is one is remembered for a day.
func TestTheAutoscalersReportIsRemembered(t *testing.T) {
	report := func(target *int32, silent time.Duration) *v1alpha1.AutoscalerReport {
		r := &v1alpha1.AutoscalerReport{Target: target}
		if silent >= 0 {
			r.SilentSince = &metav1.Time{Time: t0.Add(-silent)}
		}
		return r
	}
	four, five := ptr.To[int32](4), ptr.To[int32](5)
	reports := says(autoscaler.Group{Target: 5})
	starts := &autoscaler.Status{Updated: t0, Groups: map[string]autoscaler.Group{}}
	hangs := &autoscaler.Status{Updated: t0.Add(-autoscaler.Fresh - time.Second), Groups: reports.Groups}
	ended := &autoscaler.Status{}
	for name, test := range map[string]struct {
		last   *v1alpha1.AutoscalerReport
		status *autoscaler.Status
		want   *v1alpha1.AutoscalerReport
		target int
	}{
		"reports":                    {nil, reports, report(five, -1), 5},
		"reports again":              {report(four, time.Minute), reports, report(five, -1), 5},
		"ends":                       {report(four, -1), ended, report(four, 0), 4},
		"has ended":                  {report(four, 29*time.Minute), ended, report(four, 29*time.Minute), 4},
		"has ended for too long":     {report(four, 30*time.Minute), ended, report(four, 30*time.Minute), 0},
		"is gone":                    {report(four, 24*time.Hour+time.Second), ended, nil, 0},
		"hangs":                      {report(four, -1), hangs, report(four, 0), 4},
		"starts":                     {report(four, time.Minute), starts, report(four, time.Minute), 4},
		"has lost the group":         {report(four, 24*time.Hour+time.Second), starts, report(nil, -1), 0},
		"does not know the group":    {nil, starts, report(nil, -1), 0},
		"such a one, still":          {report(nil, -1), starts, report(nil, -1), 0},
		"such a one, restarted":      {report(nil, time.Hour), starts, report(nil, -1), 0},
		"such a one ends":            {report(nil, -1), ended, report(nil, 0), 0},
		"there was none":             {nil, ended, nil, 0},
		"an old status of another":   {nil, hangs, nil, 0},
		"read without its status":    {report(four, time.Minute), nil, report(four, time.Minute), 4},
		"a target that is no number": {report(four, -1), says(autoscaler.Group{}), report(ptr.To[int32](0), -1), 0},
	} {
		t.Run(name, func(t *testing.T) {
			object := paired(v1alpha1.PairingPlaceholder)
			object.Status.Autoscaler = test.last
			got := Report(object, test.status, t0)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("the report (-want +got):\n%s", diff)
			}
			group := Group{Object: object, Autoscaler: got}
			if target := group.Target(t0); target != test.target {
				t.Errorf("the target is %d, want %d", target, test.target)
			}
		})
	}
}
