package keda

import (
	"maps"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// with gives a trigger with some keys changed; an empty value takes a key away.
func with(base map[string]string, changes ...string) map[string]string {
	m := maps.Clone(base)
	for i := 0; i < len(changes); i += 2 {
		if changes[i+1] == "-" {
			delete(m, changes[i])
		} else {
			m[changes[i]] = changes[i+1]
		}
	}
	return m
}

var (
	pendingTrigger = map[string]string{"metric": "pendingClaims", "workload": "Job/train", "threshold": "1"}
	classTrigger   = map[string]string{"metric": "pendingClaims", "deviceClass": "gpu.nvidia.com", "threshold": "2"}
	busyTrigger    = map[string]string{"metric": "gpuUtilization", "target": "Deployment/vllm", "threshold": "70"}
	memoryTrigger  = map[string]string{"metric": "gpuMemory", "target": "Deployment/vllm", "threshold": "85"}
	queryTrigger   = map[string]string{"metric": "prometheus", "target": "Deployment/vllm", "threshold": "10", "query": "sum(waiting)"}
)

func TestATriggerThatCannotBeReadSaysWhy(t *testing.T) {
	const keys = "activationThreshold, deviceClass, loadingTimeout, metric, profile, query, role, target, threshold, valueType, valueWhileNotReady, warm, workload"
	const names = "pendingClaims, gpuUtilization, gpuMemory, prometheus, heldReplicas, possibleReplicas"
	for _, test := range []struct {
		name     string
		metadata map[string]string
		want     string
	}{
		{"nothing", nil, "metric is missing: a trigger has one of " + names},
		{"an unknown metric", with(busyTrigger, "metric", "gpuUtilisation"), `metric "gpuUtilisation" is unknown: a trigger has one of ` + names},
		{"a misspelt key", with(busyTrigger, "treshold", "5"), `key "treshold" is unknown: a trigger has ` + keys},
		{"a key of another metric", with(busyTrigger, "query", "up"), "query is for metric prometheus and does nothing for gpuUtilization: leave it out"},
		{"a key of another metric with a class", with(busyTrigger, "deviceClass", "gpu.nvidia.com"), "deviceClass is for metric pendingClaims and does nothing for gpuUtilization: leave it out"},
		{"a key from the environment", with(busyTrigger, "thresholdFromEnv", "5"), "key thresholdFromEnv is unknown: threshold is not read from the environment, write its value into the trigger"},
		{"an empty key", with(busyTrigger, "profile", " "), "profile is empty: give it a value or leave it out"},
		{"half a standby", with(queryTrigger, "warm", "0.5"), "warm 0.5 is out of range: use a whole number of replicas from 0 to 1000"},
		{"fewer than no standby", with(queryTrigger, "warm", "-1"), "warm -1 is out of range"},
		{"whose standbys", with(classTrigger, "warm", "1"), "warm needs target: name the workload of the standbys"},
		{"a role that is unknown", with(busyTrigger, "role", "keep"), `role "keep" is unknown: use demand`},
		{"whose replicas to hold", with(classTrigger, "role", "hold"), "target is missing: name the workload whose replicas the trigger holds"},
		{"a trigger that is too long", with(queryTrigger, "query", strings.Repeat("x", mostText)), "the trigger has 16437 bytes: shorten it to at most 16384"},
		{"no target", with(busyTrigger, "target", "-"), "target is missing: metric gpuUtilization is about the pods of one workload, such as Deployment/vllm"},
		{"a target without a kind", with(busyTrigger, "target", "vllm"), `target "vllm" names no workload`},
		{"a target of a kind that is unknown", with(busyTrigger, "target", "Pod/vllm"), `target "Pod/vllm"`},
		{"a target that is a Job", with(busyTrigger, "target", "Job/train"), "target Job/train cannot be scaled: name a Deployment, a StatefulSet, a ReplicaSet or another kind with a scale subresource"},
		{"a target with a name that cannot be", with(busyTrigger, "target", "Deployment/a/b"), `target "Deployment/a/b"`},
		{"a workload without a kind", with(pendingTrigger, "workload", "train"), `workload "train" names no workload`},
		{"workload and class", with(classTrigger, "workload", "Job/train"), "workload and deviceClass exclude each other: remove one of them"},
		{"neither workload nor class", with(pendingTrigger, "workload", "-"), "metric pendingClaims needs workload, deviceClass or target: add one of them"},
		{"a class that cannot be", with(classTrigger, "deviceClass", "a b"), `deviceClass "a b" cannot be the name of a DeviceClass: write one such as gpu.nvidia.com`},
		{"an unknown profile", with(busyTrigger, "profile", "real-time"), `profile "real-time" is unknown: there are batch, realtime`},
		{"a profile without the metric", with(memoryTrigger, "threshold", "-", "profile", "realtime"), "threshold is missing: profile realtime has none for metric gpuMemory"},
		{"no threshold", with(busyTrigger, "threshold", "-"), "threshold is missing: set the value per replica above which a replica is added, or a profile that has one"},
		{"a threshold that is no number", with(busyTrigger, "threshold", "70%"), `threshold "70%" is not a number: write one such as 10 or 0.5`},
		{"a threshold without end", with(busyTrigger, "threshold", "Inf"), `threshold "Inf" is not a number: write one such as 10 or 0.5`},
		{"a threshold of nothing", with(busyTrigger, "threshold", "0"), "threshold 0 is out of range: use 0.001 to 1000000000000"},
		{"a threshold that KEDA cannot tell from nothing", with(busyTrigger, "threshold", "0.0004"), "threshold 0.0004 is out of range: use 0.001 to 1000000000000"},
		{"an activation below nothing", with(busyTrigger, "activationThreshold", "-1"), "activationThreshold -1 is out of range: use 0 or more"},
		{"an activation that is no number", with(busyTrigger, "activationThreshold", "NaN"), `activationThreshold "NaN" is not a number`},
		{"no query", with(queryTrigger, "query", "-"), "query is missing: metric prometheus has a PromQL query that gives one number"},
		{"an unknown type of value", with(queryTrigger, "valueType", "mean"), `valueType "mean" is unknown: it is total (a sum over the replicas) or average (a mean over them)`},
		{"an empty value that is no number", with(queryTrigger, "valueWhileNotReady", "none"), `valueWhileNotReady "none" is not a number: write one such as 10 or 0.5`},
		{"a timeout that is none", with(busyTrigger, "loadingTimeout", "30"), `loadingTimeout "30" is not a duration above zero: write one such as 90s, 30m or 1h30m`},
		{"a timeout of nothing", with(busyTrigger, "loadingTimeout", "0s"), `loadingTimeout "0s" is not a duration above zero: write one such as 90s, 30m or 1h30m`},
		{"a timeout without a target", with(classTrigger, "loadingTimeout", "5m"), "loadingTimeout needs target: name the workload that loads"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			_, err := w.metrics(t, test.metadata)
			if err == nil || !strings.Contains(err.Error(), "the trigger cannot be used: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("GetMetrics says %v, want %q", err, test.want)
			}
			if _, isActive := w.scaler.Active(t.Context(), scaledObject(test.metadata)); err == nil || isActive.Error() != err.Error() {
				t.Errorf("IsActive says %v", isActive)
			}
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("code %v", status.Code(err))
			}
			spec, err := w.scaler.Spec(t.Context(), scaledObject(test.metadata))
			if err != nil || spec.MetricSpecs[0].MetricName != "mica-invalid" || spec.MetricSpecs[0].TargetSizeFloat != 1 {
				t.Errorf("the spec is %v, %v: without one KEDA asks no more, and shows no error", spec, err)
			}
		})
	}
}

func TestATriggerIsRead(t *testing.T) {
	for _, test := range []struct {
		name                  string
		metadata              map[string]string
		spec                  string
		threshold, activation float64
		loading               time.Duration
	}{
		{"what it says", with(busyTrigger, "activationThreshold", "5", "loadingTimeout", "90s"), "mica-gpu-utilization", 70, 5, 90 * time.Second},
		{"the profile for what it does not say", with(busyTrigger, "threshold", "-", "profile", "realtime"), "mica-gpu-utilization", 70, 50, defaultLoadingTimeout},
		{"what it says before the profile", with(busyTrigger, "threshold", "60", "activationThreshold", "0", "profile", "realtime"), "mica-gpu-utilization", 60, 0, defaultLoadingTimeout},
		{"KEDA's own keys", with(pendingTrigger, "scalerAddress", "mica:9443", "enableTLS", "true", "unsafeSsl", "", "scalerAddressFromEnv", "X"), "mica-pending-claims", 1, 0, defaultLoadingTimeout},
		{"thousandths", with(queryTrigger, "threshold", "0.1239"), "mica-prometheus", 0.124, 0, defaultLoadingTimeout},
		{"memory", memoryTrigger, "mica-gpu-memory", 85, 0, defaultLoadingTimeout},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld()
			trigger, err := Parse("default", test.metadata, profiles{w})
			if err != nil {
				t.Fatal(err)
			}
			if trigger.Threshold != test.threshold || trigger.Activation != test.activation || trigger.LoadingTimeout != test.loading {
				t.Errorf("read as %+v", trigger)
			}
			spec, _ := w.scaler.Spec(t.Context(), scaledObject(test.metadata))
			if s := spec.MetricSpecs[0]; s.MetricName != test.spec || s.TargetSizeFloat != test.threshold || s.TargetSize < 1 {
				t.Errorf("the spec is %v", spec)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, m := range []map[string]string{pendingTrigger, classTrigger, busyTrigger, queryTrigger} {
		f.Add(m["metric"], m["target"], m["threshold"], "deviceClass", "gpu.nvidia.com", "query", "up")
	}
	w := newWorld()
	f.Fuzz(func(t *testing.T, metric, target, threshold, key, value, key2, value2 string) {
		trigger, err := Parse("default", map[string]string{"metric": metric, "target": target, "threshold": threshold, key: value, key2: value2}, profiles{w})
		if err != nil {
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("code %v of %v", status.Code(err), err)
			}
			return
		}
		if trigger.metric == nil || trigger.definition == nil || trigger.Threshold < leastThreshold || trigger.Threshold > mostThreshold || trigger.Activation < 0 || trigger.LoadingTimeout <= 0 || trigger.definition.targeted && trigger.Target == nil {
			t.Errorf("read as %+v", trigger)
		}
	})
}
