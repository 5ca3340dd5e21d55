package keda

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kedacore/keda/v2/pkg/scalers"
	"github.com/kedacore/keda/v2/pkg/scalers/scalersconfig"
	v2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

// config is of a trigger as KEDA's operator hands it to a scaler.
func config(address string, auth map[string]string) *scalersconfig.ScalerConfig {
	metadata := map[string]string{"scalerAddress": address, "metric": "pendingClaims", "target": "Deployment/vllm"}
	return &scalersconfig.ScalerConfig{
		ScalableObjectName:      "vllm",
		ScalableObjectNamespace: "ml",
		TriggerMetadata:         metadata,
		AuthParams:              auth,
		TriggerIndex:            1,
	}
}

func poll(t *testing.T, config *scalersconfig.ScalerConfig) scalers.Scaler {
	t.Helper()
	scaler, err := scalers.NewExternalScaler(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := scaler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return scaler
}

// push is a scaler whose streams run until the test ends.
func push(t *testing.T, config *scalersconfig.ScalerConfig) (active <-chan bool, specs <-chan []v2.MetricSpec) {
	t.Helper()
	scaler, err := scalers.NewExternalPushScaler(config)
	if err != nil {
		t.Fatal(err)
	}
	watcher, is := scaler.(interface{ MetricSpecChan() <-chan []v2.MetricSpec })
	if !is {
		t.Fatal("KEDA's push scaler has no channel of specs any more")
	}
	ctx, stop := context.WithCancel(context.Background())
	states := make(chan bool)
	go scaler.Run(ctx, states)
	t.Cleanup(func() {
		stop()
		for range states { // it is closed by Run
		}
		for range watcher.MetricSpecChan() {
		}
		if err := scaler.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return states, watcher.MetricSpecChan()
}

const metric = "s1-mica-pending-claims"

// gets is an error unless KEDA gets the value.
func gets(scaler scalers.Scaler, value string, active bool) error {
	values, is, err := scaler.GetMetricsAndActivity(context.Background(), metric)
	if err != nil {
		return err
	}
	if len(values) != 1 || values[0].MetricName != metric || values[0].Value.Cmp(resource.MustParse(value)) != 0 || is != active {
		return fmt.Errorf("KEDA gets %v, active %v; want %s %s, active %v", values, is, metric, value, active)
	}
	return nil
}

// refused is an error unless KEDA gets an error with all parts.
func refused(scaler scalers.Scaler, parts ...string) error {
	values, active, err := scaler.GetMetricsAndActivity(context.Background(), metric)
	if err == nil {
		return fmt.Errorf("KEDA gets %v, active %v; want an error", values, active)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			return fmt.Errorf("KEDA gets the error %w, want it to say %q", err, part)
		}
	}
	return nil
}

func specOf(target string, specs []v2.MetricSpec) error {
	if len(specs) != 1 || specs[0].External == nil || specs[0].External.Metric.Name != metric || specs[0].External.Target.AverageValue == nil || specs[0].External.Target.AverageValue.Cmp(resource.MustParse(target)) != 0 {
		return fmt.Errorf("KEDA gets %+v, want %s with an average of %s", specs, metric, target)
	}
	return nil
}

func TestKEDAReadsWhatIsAnswered(t *testing.T) {
	s := serve(t, script{Metric: "mica-pending-claims", Target: 1})
	scaler := poll(t, config(s.address, nil))
	for name, test := range map[string]struct {
		script        script
		value, target string
	}{
		"whole numbers":              {script{Active: true, Value: 3, Target: 1}, "3", "1"},
		"fractions":                  {script{Active: true, Value: 7.5, Target: 2.5}, "7500m", "2500m"},
		"nothing":                    {script{Target: 1}, "0", "1"},
		"nothing, and still loading": {script{Active: true, Target: 1}, "0", "1"},
		"less than one":              {script{Active: true, Value: 0.25, Target: 0.5}, "250m", "500m"},
	} {
		t.Run(name, func(t *testing.T) {
			test.script.Metric = "mica-pending-claims"
			s.answer(t, test.script)
			if err := errors.Join(
				gets(scaler, test.value, test.script.Active),
				specOf(test.target, scaler.GetMetricSpecForScaling(t.Context())),
			); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestErrorsReachKEDAInWords(t *testing.T) {
	s := serve(t, script{})
	scaler := poll(t, config(s.address, nil))
	for name, test := range map[string]struct {
		said, heard string
	}{
		"a bad trigger":    {`metric "gpuUtilisation" is unknown: write gpuUtilization`, `metric "gpuUtilisation" is unknown: write gpuUtilization`},
		"the metadata":     {"metadata", "ml/vllm has map[metric:pendingClaims scalerAddress:" + s.address + " target:Deployment/vllm]"},
		"a bug":            {"panic", "the controller has a bug"},
		"no script at all": {"", "there is no script yet"},
	} {
		t.Run(name, func(t *testing.T) {
			s.answer(t, script{Error: test.said})
			if err := refused(scaler, test.heard); err != nil {
				t.Error(err)
			}
			if specs := scaler.GetMetricSpecForScaling(t.Context()); specs != nil {
				t.Errorf("KEDA gets the spec %v", specs)
			}
		})
	}
}

func TestKEDAIsToldAtOnceAndOfEachChange(t *testing.T) {
	s := serve(t, script{Metric: "mica-pending-claims", Target: 1})
	active, specs := push(t, config(s.address, nil))
	if receive(t, "the state", active) {
		t.Error("it is active")
	}
	if err := specOf("1", receive(t, "the spec", specs)); err != nil {
		t.Error(err)
	}
	s.answer(t, script{Metric: "mica-pending-claims", Target: 2.5, Active: true})
	if !receive(t, "the change", active) {
		t.Error("it is not active")
	}
	if err := specOf("2500m", receive(t, "the change of the spec", specs)); err != nil {
		t.Error(err)
	}
}

func TestKEDAComesBack(t *testing.T) {
	for name, end := range map[string]func(*server, *testing.T){
		"to one that was killed":     (*server).kill,
		"to one that was terminated": (*server).terminate,
	} {
		t.Run(name, func(t *testing.T) {
			idle, busy := script{Metric: "mica-pending-claims", Target: 1}, script{Metric: "mica-pending-claims", Target: 2, Active: true, Value: 4}
			s := serve(t, idle)
			scaler := poll(t, config(s.address, nil))
			active, specs := push(t, config(s.address, nil))
			receive(t, "the state", active)
			receive(t, "the spec", specs)
			end(s, t)
			if err := refused(scaler, "Unavailable"); err != nil {
				t.Error(err)
			}
			serve(t, busy, "--address", s.address)
			eventually(t, "polls are answered", func() error { return gets(scaler, "4", true) })
			if !receive(t, "the state again", active) {
				t.Error("it is not active")
			}
			if err := specOf("2", receive(t, "the spec again", specs)); err != nil {
				t.Error(err)
			}
		})
	}
}

// As behind the Service, whose one address leads to a replica that is ready. KEDA dials again at
// once, and after a refusal in a second: it never gets to grpc's backoff of two minutes, however
// often a replica goes.
func TestALostReplicaCostsKEDAOnePoll(t *testing.T) {
	scripted := script{Metric: "mica-pending-claims", Target: 1, Value: 1, Active: true}
	serving := serve(t, scripted)
	service := newService(t, serving.address)
	scaler := poll(t, config(service.address(), nil))
	eventually(t, "the first replica answers", func() error { return gets(scaler, "1", true) })
	for i := range 6 {
		next := serve(t, scripted)
		if i%2 == 0 { // kube-proxy may be late
			service.leadTo(next.address)
		}
		serving.kill(t)
		_ = gets(scaler, "1", true) // the poll that may be lost
		service.leadTo(next.address)
		time.Sleep(2 * time.Second) // to the next poll; KEDA's interval is 15 s
		if err := gets(scaler, "1", true); err != nil {
			t.Errorf("the poll after replica %d was killed: %v", i, err)
		}
		serving = next
	}
}
