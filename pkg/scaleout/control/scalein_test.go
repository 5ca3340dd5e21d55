package control

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// AWS's refusal stays in the condition between two attempts, which are minutes apart.
func TestARefusedScaleInIsReportedUntilANodeEnds(t *testing.T) {
	const after = 10 * time.Minute
	status := &v1alpha1.GPUNodeGroupStatus{}
	for i, step := range []struct {
		in   pair.ScaleIn
		want string
	}{
		{pair.ScaleIn{}, ""},
		{pair.ScaleIn{After: after}, "True EmptyNodesEnd"},
		{pair.ScaleIn{After: after, Problem: "denied"}, "False ScaleInRefused"},
		{pair.ScaleIn{After: after}, "False ScaleInRefused"},
		{pair.ScaleIn{After: after, Ending: true}, "True EmptyNodesEnd"},
		{pair.ScaleIn{After: after, Ending: true, Problem: "denied"}, "False ScaleInRefused"},
		{pair.ScaleIn{}, ""},
	} {
		r := groupReport{group: view.Group{Object: group("g6")}, now: time.Now(), pairing: pair.GroupStatus{ScaleIn: step.in}}
		var err error
		if status, err = r.status(status); err != nil {
			t.Fatal(err)
		}
		got := ""
		if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionScaleIn); c != nil {
			got = string(c.Status) + " " + c.Reason
		}
		if got != step.want {
			t.Errorf("after step %d the condition is %q, want %q", i, got, step.want)
		}
	}
}
