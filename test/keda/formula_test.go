package keda

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	kedav1alpha1 "github.com/kedacore/keda/v2/apis/keda/v1alpha1"
	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
	"github.com/kedacore/keda/v2/pkg/scaling/cache"
	"github.com/kedacore/keda/v2/pkg/scaling/modifiers"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/metrics/pkg/apis/external_metrics"
	"sigs.k8s.io/yaml"
)

// printed is a ScaledObject as kubectl gpu scaledobject prints it.
func printed(t *testing.T, file string) *kedav1alpha1.ScaledObject {
	t.Helper()
	content, err := os.ReadFile(filepath.Join("..", "..", "pkg", "elastic", "scaledobject", "testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	object := &kedav1alpha1.ScaledObject{}
	if err := yaml.UnmarshalStrict(content[strings.LastIndex(string(content), "---\n")+1:], object); err != nil {
		t.Fatal(err)
	}
	return object
}

// failing is a trigger from which KEDA has an error.
const failing = -1

// composite is what KEDA makes of the triggers' values; false where it has none, for which the
// autoscaler keeps the replicas.
func composite(t *testing.T, object *kedav1alpha1.ScaledObject, values map[string]int64) (float64, bool) {
	t.Helper()
	formula, err := kedav1alpha1.ValidateAndCompileScalingModifiers(object)
	if err != nil {
		t.Fatal(err)
	}
	object.Status.Health = map[string]kedav1alpha1.HealthStatus{}
	var metrics []external_metrics.ExternalMetricValue
	pairs := map[string]string{}
	for name, value := range values {
		failures := int32(0)
		if value == failing {
			failures = 1
		}
		object.Status.Health["s-"+name] = kedav1alpha1.HealthStatus{NumberOfFailures: &failures}
		metrics = append(metrics, external_metrics.ExternalMetricValue{MetricName: "s-" + name, Value: *resource.NewQuantity(value, resource.DecimalSI)})
		pairs["s-"+name] = name
	}
	got := modifiers.HandleScalingModifiers(object, metrics, pairs, false, nil, &cache.ScalersCache{CompiledFormula: formula}, logr.Discard())
	if len(got) == 0 {
		return 0, false
	}
	return got[0].Value.AsApproximateFloat64(), true
}

// KEDA's own code says what a printed formula gives while triggers fail.
func TestAPrintedFormulaGoesOnWithoutATrigger(t *testing.T) {
	const none, queue = -1.0, "../../../../examples/queue/scaledobject.yaml"
	for name, test := range map[string]struct {
		file   string
		values map[string]int64
		want   float64
	}{
		"all are there":           {"realtime.yaml", map[string]int64{"load": 5, "held": 3, "possible": 6}, 5},
		"the cap":                 {"realtime.yaml", map[string]int64{"load": 5, "held": 3, "possible": 4}, 4},
		"the controller is away":  {"realtime.yaml", map[string]int64{"load": 5, "held": failing, "possible": failing}, 5},
		"and the load is high":    {"realtime.yaml", map[string]int64{"load": 50, "held": failing, "possible": failing}, 8},
		"held is unknown":         {"realtime.yaml", map[string]int64{"load": 5, "held": failing, "possible": 4}, 4},
		"possible is unknown":     {"realtime.yaml", map[string]int64{"load": 2, "held": 3, "possible": failing}, 3},
		"the load is unknown":     {"realtime.yaml", map[string]int64{"load": failing, "held": 1, "possible": 6}, none},
		"all are unknown":         {"realtime.yaml", map[string]int64{"load": failing, "held": failing, "possible": failing}, none},
		"from zero":               {"realtime-zero.yaml", map[string]int64{"load": 1, "held": failing, "possible": failing, "pods": 0}, 1},
		"no load at zero":         {"realtime-zero.yaml", map[string]int64{"load": failing, "held": 0, "possible": 6, "pods": 0}, 0},
		"no load beside replicas": {"realtime-zero.yaml", map[string]int64{"load": failing, "held": 0, "possible": 6, "pods": 3}, 3},
		"all but pods":            {"realtime-zero.yaml", map[string]int64{"load": failing, "held": failing, "possible": failing, "pods": 3}, 3},
		"a queue":                 {queue, map[string]int64{"queue": 10, "held": failing, "possible": failing, "pods": 1}, 2},
		"a worker with the last":  {queue, map[string]int64{"queue": 0, "held": failing, "possible": failing, "pods": 1}, 1},
		"a queue that is away":    {queue, map[string]int64{"queue": failing, "held": 0, "possible": 6, "pods": 3}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			object := printed(t, test.file)
			got, any := composite(t, object, test.values)
			if any != (test.want != none) || any && got != test.want {
				t.Errorf("%s gives %v (%t), want %v", object.Spec.Advanced.ScalingModifiers.Formula, got, any, test.want)
			}
		})
	}
}

// Without the name of its metric, KEDA asks a trigger for nothing, and so has no failure of it to fall
// back from. Only a stream lets it know the name while the controller is away.
func TestAPushedTriggerKeepsItsMetricWhileTheControllerIsAway(t *testing.T) {
	s := serve(t, script{Metric: "mica-held-replicas", Target: 1})
	c := config(s.address, nil)
	scaler, err := scalers.NewExternalPushScaler(c)
	if err != nil {
		t.Fatal(err)
	}
	factory := func(context.Context) (scalers.Scaler, *scalersconfig.ScalerConfig, error) {
		again, err := scalers.NewExternalPushScaler(c)
		return again, c, err
	}
	object := &kedav1alpha1.ScaledObject{}
	known := &cache.ScalersCache{ScaledObject: object, Scalers: []cache.ScalerBuilder{{Scaler: scaler, ScalerConfig: *c, Factory: factory}}}
	t.Cleanup(func() { known.Close(context.Background()) })
	_, specs := push(t, c)
	select {
	case got := <-specs:
		if !known.UpdateMetricSpecForScaler(0, got, object.UID, 0) {
			t.Fatal("KEDA does not take the streamed metric")
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the metric is not streamed")
	}
	s.kill(t)
	got, err := known.GetMetricSpecForScalingForScaler(t.Context(), 0)
	if err != nil || len(got) != 1 {
		t.Fatalf("KEDA knows the metrics %v, %v", got, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, _, _, err := known.GetMetricsAndActivityForScaler(ctx, 0, got[0].External.Metric.Name); err == nil {
		t.Error("there is a value without the controller")
	}
	if got, err := known.GetMetricSpecForScalingForScaler(t.Context(), 0); err != nil || len(got) != 1 {
		t.Errorf("after the error KEDA knows the metrics %v, %v", got, err)
	}
}
