package offer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/node/wake"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// reporting runs a node's report until the test ends, in a bubble of time.
func reporting(t *testing.T, policies *apiserver.Policies) *report {
	t.Helper()
	r := &report{client: policies, nodeName: fixture.NodeName, changed: wake.New()}
	fixture.Background(t.Context(), t, r.run)
	return r
}

func TestANodeReportsTheVerdictOnItsPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := apiserver.NewPolicies()
		r := reporting(t, policies)
		after(time.Hour)
		if said := policies.Node(fixture.NodeName); said != nil {
			t.Errorf("before it has looked: got %+v", said)
		}
		for _, verdict := range []*v1alpha1.NodePolicy{{Name: "p", UID: "u", ObservedGeneration: 1}, {Name: "p", UID: "u", ObservedGeneration: 2, Message: "it is too old"}, nil} {
			r.set("uid-node", verdict, nil)
			after(reportSpread)
			said := policies.Node(fixture.NodeName)
			if (said.Policy == nil) != (verdict == nil) || verdict != nil && *said.Policy != *verdict {
				t.Errorf("got %+v, want %+v", said.Policy, verdict)
			}
			if owner := said.OwnerReferences[0]; owner.Kind != "Node" || owner.Name != fixture.NodeName || owner.UID != "uid-node" {
				t.Errorf("it belongs to %+v", owner)
			}
			r.set("uid-node", verdict, nil)
			if writes := policies.Reports(); writes != 1 {
				t.Errorf("%d writes", writes)
			}
		}
		after(2*reportAgain + reportSpread)
		if writes := policies.Reports(); writes != 1 {
			t.Errorf("without a change: %d writes", writes)
		}
	})
}

func TestAnAPIServerThatTakesNoReportIsAskedSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policies := apiserver.NewPolicies()
		policies.Refuse(errNotAllowed)
		r := reporting(t, policies)
		r.set("uid-node", nil, nil)
		after(time.Hour)
		if writes := policies.Reports(); writes < 10 || writes > 60 {
			t.Errorf("%d writes in an hour", writes)
		}
		policies.Refuse(nil)
		after(2*reportRetries.Cap + reportSpread)
		if policies.Node(fixture.NodeName) == nil {
			t.Error("it says nothing")
		}
	})
}
