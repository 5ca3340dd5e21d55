package keda

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

func TestAMetricIsATotalOverTheReplicas(t *testing.T) {
	for _, test := range []struct {
		name    string
		trigger map[string]string
		world   func(*world)
		value   float64
		active  bool
	}{
		{"no claim waits", pendingTrigger, func(w *world) {}, 0, false},
		{"claims of a workload wait", pendingTrigger, func(w *world) { w.pending["default/Job/train"] = 3 }, 3, true},
		{"claims of a class wait", classTrigger, func(w *world) { w.pending["default/gpu.nvidia.com"] = 2 }, 2, true},
		{"claims of the target wait", with(pendingTrigger, "workload", "-", "target", "Deployment/vllm"), func(w *world) { w.pending["default/Deployment/vllm"] = 4 }, 4, true},
		{"as many claims wait as activate", with(pendingTrigger, "activationThreshold", "3"), func(w *world) { w.pending["default/Job/train"] = 3 }, 3, false},
		{"no GPU is held, and none is asked", busyTrigger, func(w *world) { w.usageErr = errors.New("asked") }, 0, false},
		{"GPUs are busy", busyTrigger, func(w *world) {
			w.pods = append(pods(3), pod("late", waiting))
			w.usage = usage.Usage{Utilization: usage.Mean{Value: 0.5}, Memory: usage.Mean{Value: 0.9}, Devices: 3}
		}, 150, true},
		{"GPUs are as busy as activates", with(busyTrigger, "activationThreshold", "150"), func(w *world) {
			w.pods = pods(3)
			w.usage = usage.Usage{Utilization: usage.Mean{Value: 0.5}, Devices: 3}
		}, 150, false},
		{"a pod without a node uses nothing", busyTrigger, func(w *world) {
			w.pods = append(pods(2), pod("late", func(p *workload.Pod) { p.Node, p.Ready = "", false }))
			w.usage = usage.Usage{Utilization: usage.Mean{Value: 0.5}, Devices: 2}
		}, 100, true},
		{"no pod that holds GPUs has a node", busyTrigger, func(w *world) {
			w.pods = []workload.Pod{pod("late", func(p *workload.Pod) { p.Node, p.Ready = "", false })}
		}, 0, false},
		{"memory is used", memoryTrigger, func(w *world) {
			w.pods = pods(2)
			w.usage = usage.Usage{Utilization: usage.Mean{Value: 0.5}, Memory: usage.Mean{Value: 0.75}, Devices: 2}
		}, 150, true},
		{"a query gives a total", queryTrigger, func(w *world) { w.answers["sum(waiting)"] = 12.5; w.pods = pods(3) }, 12.5, true},
		{"a query gives a mean over what is Ready", with(queryTrigger, "valueType", "average"), func(w *world) {
			w.answers["sum(waiting)"] = 12.5
			w.pods = append(pods(2), pod("late", loadingFor(time.Hour)))
		}, 25, true},
		{"a query gives a mean over nothing", with(queryTrigger, "valueType", "average"), func(w *world) { w.answers["sum(waiting)"] = 12.5 }, 12.5, true},
		{"a query matches nothing, which is foreseen", with(queryTrigger, "valueWhileNotReady", "7"), func(w *world) { w.queryErr = fmt.Errorf("query: %w", ErrNoData) }, 7, true},
		{"a query gives less than nothing", queryTrigger, func(w *world) { w.answers["sum(waiting)"] = -3 }, 0, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			test.world(w)
			value, err := w.metrics(t, test.trigger)
			if err != nil || math.Abs(value-test.value) > 1e-9 {
				t.Errorf("value %v, %v, want %v", value, err, test.value)
			}
			active, err := w.scaler.Active(t.Context(), scaledObject(test.trigger))
			if err != nil || active != test.active {
				t.Errorf("active %v, %v, want %v", active, err, test.active)
			}
		})
	}
}

// KEDA takes 0 for an idle workload, so an unknown value must be an error.
func TestAnUnknownValueIsAnError(t *testing.T) {
	for _, test := range []struct {
		name    string
		trigger map[string]string
		world   func(*world)
		want    string
		code    codes.Code
	}{
		{"the target does not exist", with(busyTrigger, "target", "Deployment/gone"), func(w *world) {}, "Deployment/gone does not exist in namespace default", codes.Unknown},
		{"devices do not tell", busyTrigger, func(w *world) {
			w.pods = pods(1)
			w.usageErr = errors.New("the plugin of node-1 was last heard 50s ago")
		}, "utilization of the GPUs of Deployment/vllm is unknown: the plugin of node-1 was last heard 50s ago", codes.Unavailable},
		{"nothing was measured", memoryTrigger, func(w *world) { w.pods = pods(2) }, "memory of the GPUs of Deployment/vllm is unknown: no device reported usage, though 2 replicas hold devices", codes.Unavailable},
		{"no number", busyTrigger, func(w *world) {
			w.pods = pods(1)
			w.usage = usage.Usage{Utilization: usage.Mean{Value: math.NaN()}, Devices: 1}
		}, "metric gpuUtilization is NaN, not a finite number", codes.Unavailable},
		{"the query matches nothing", queryTrigger, func(w *world) { w.queryErr = fmt.Errorf("query: %w", ErrNoData) }, "query: the query matches nothing; set valueWhileNotReady for the time in which no replica is Ready", codes.Unknown},
		{"the query matches nothing beside replicas", with(queryTrigger, "valueWhileNotReady", "0"), func(w *world) {
			w.pods = pods(2)
			w.queryErr = fmt.Errorf("query: %w", ErrNoData)
		}, "query: the query matches nothing though 2 replicas are Ready: correct its names, check that Prometheus scrapes the pods, or write `or vector(0)` where nothing means 0", codes.Unknown},
		{"Prometheus is down", queryTrigger, func(w *world) { w.queryErr = unavailable(errors.New("it cannot be reached")) }, "it cannot be reached", codes.Unavailable},
		{"no Prometheus", queryTrigger, func(w *world) { w.scaler.Prometheus = nil }, "the controller answers no queries of triggers: an administrator allows them by the chart's values controller.keda.prometheus.address and controller.keda.prometheus.triggers", codes.Unavailable},
		{"no plan for the target", queryTrigger, func(w *world) {
			w.answers["sum(waiting)"] = 12
			w.supplyErr = errors.New("the last plan was made 5m ago")
		}, "cannot count devices for more replicas of Deployment/vllm: the last plan was made 5m ago", codes.Unavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			test.world(w)
			_, err := w.metrics(t, test.trigger)
			if err == nil || err.Error() != test.want {
				t.Errorf("GetMetrics says %v", err)
			}
			if code := status.Code(err); code != test.code {
				t.Errorf("code %v, want %v", code, test.code)
			}
			if active, isActive := w.scaler.Active(t.Context(), scaledObject(test.trigger)); active || isActive == nil || isActive.Error() != test.want {
				t.Errorf("IsActive says %v, %v", active, isActive)
			}
		})
	}
}

func TestALoadingPodKeepsItsTargetActive(t *testing.T) {
	for _, test := range []struct {
		name    string
		trigger map[string]string
		pods    []workload.Pod
		active  bool
	}{
		{"nothing runs", queryTrigger, nil, false},
		{"it waits for devices", queryTrigger, []workload.Pod{pod("a", waiting)}, false},
		{"it loads", queryTrigger, []workload.Pod{pod("a"), pod("b", loadingFor(29*time.Minute))}, true},
		{"it loads for too long", queryTrigger, []workload.Pod{pod("b", loadingFor(30*time.Minute))}, false},
		{"it loads for longer than the trigger allows", with(queryTrigger, "loadingTimeout", "5m"), []workload.Pod{pod("b", loadingFor(6*time.Minute))}, false},
		{"it may load for longer", with(queryTrigger, "loadingTimeout", "2h"), []workload.Pod{pod("b", loadingFor(time.Hour))}, true},
		{"it is Ready", queryTrigger, []workload.Pod{pod("a")}, false},
		{"no target is named", pendingTrigger, []workload.Pod{pod("b", loadingFor(time.Minute))}, false},
		{"another metric", with(pendingTrigger, "target", "Deployment/vllm"), []workload.Pod{pod("b", loadingFor(time.Minute))}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			w.pods = test.pods
			active, err := w.scaler.Active(t.Context(), scaledObject(test.trigger))
			if err != nil || active != test.active {
				t.Errorf("active %v, %v, want %v", active, err, test.active)
			}
		})
	}
	t.Run("the source does not answer", func(t *testing.T) {
		w := newWorld()
		w.pods, w.queryErr = []workload.Pod{pod("b", loadingFor(time.Minute))}, errors.New("down")
		if active, err := w.scaler.Active(t.Context(), scaledObject(queryTrigger)); err != nil || !active {
			t.Errorf("active %v, %v", active, err)
		}
		if _, err := w.metrics(t, queryTrigger); err == nil || !strings.Contains(err.Error(), "down") {
			t.Errorf("GetMetrics says %v", err)
		}
	})
}
