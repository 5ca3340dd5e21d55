package publish

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"

	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// An alert looks at the age of the last success, which must not grow on a node where nothing changes,
// and must grow where the slices are not as they are to be.
func TestTheTimeOfThePublicationIsOldOnlyWhereItFails(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	registry.MustRegister(Metrics()...)
	all := partitionable(t, 1)
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		p := publishing(t, api, all)
		after(time.Hour)
		if age := ageOfPublication(t, registry); age > confirmPeriod {
			t.Errorf("after a quiet hour the last success is %s old", age)
		}
		api.PrependReactor("update", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, apiserver.ErrAway })
		p.Set(partitionable(t, 2))
		after(time.Hour)
		if age := ageOfPublication(t, registry); age < time.Hour {
			t.Errorf("after an hour in which nothing could be written the last success is %s old", age)
		}
	})
}

func ageOfPublication(t *testing.T, registry metrics.KubeRegistry) time.Duration {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "mica_last_successful_publish_timestamp_seconds" {
			return time.Since(time.Unix(int64(family.GetMetric()[0].GetGauge().GetValue()), 0))
		}
	}
	t.Fatal("there is no such metric")
	return 0
}
