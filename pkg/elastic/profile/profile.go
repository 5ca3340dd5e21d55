// Package profile has thresholds and speeds for scaling kinds of GPU workloads: data in one file, which an
// operator's file in the same format overrides. It never decides how to scale.
package profile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Signals to scale by. Mica measures the first two. The others are metrics of a model server in Prometheus.
const (
	// GPUUtilization and GPUMemory are percent of a replica's devices.
	GPUUtilization = "gpuUtilization"
	GPUMemory      = "gpuMemory"
	// KVCache is the used percentage of a replica's cache for keys and values.
	KVCache = "kvCache"
	// WaitingRequests and RunningRequests are per replica.
	WaitingRequests = "waitingRequests"
	RunningRequests = "runningRequests"
	// TTFT is the 95th percentile of the seconds until a request's first token.
	TTFT = "ttft"
	// PromptWait is the 95th percentile of the seconds that a prompt waits in the queue.
	PromptWait = "promptWait"
	// InterTokenLatency is the 95th percentile of the seconds between two tokens of an answer.
	InterTokenLatency = "interTokenLatency"
	// TokensPerSecond are generated tokens per replica. No profile has a target, which depends on model and
	// device: take it from a load test.
	TokensPerSecond = "tokensPerSecond"
)

// percentages are the signals that cannot exceed 100.
var percentages = map[string]bool{GPUUtilization: true, GPUMemory: true, KVCache: true}

// known are the names of all signals, sorted.
var known = slices.Sorted(slices.Values([]string{GPUUtilization, GPUMemory, KVCache, WaitingRequests, RunningRequests, TTFT, PromptWait, InterTokenLatency, TokensPerSecond}))

// Profile is how to scale one kind of workload. It is shared and must not be changed.
type Profile struct {
	Name string `json:"-"`
	// Triggers are the signals to scale by, the most sensitive first.
	Triggers []string `json:"triggers"`
	// Targets are the values per replica above which replicas are added, by signal. Each of Triggers has one.
	Targets map[string]float64 `json:"targets"`
	// ScaleInBelow are the values below which replicas are removed, by signal. Each is below its target.
	ScaleInBelow map[string]float64 `json:"scaleInBelow"`
	// Activation are the values above which the first replica starts, by signal. Default: 0.
	Activation map[string]float64 `json:"activation"`
	// Warm is the number of loaded replicas that wait for work, besides the requested ones.
	Warm int32 `json:"warm"`
	// Cooldown is the time without demand before the last replica is removed.
	Cooldown metav1.Duration `json:"cooldown"`
}

// ScaleInTolerance is how far a metric must be below its target before a replica is removed, as a fraction
// of the target. The HorizontalPodAutoscaler has one number for all metrics, so it is the largest. It is
// rounded down to thousandths.
func (p Profile) ScaleInTolerance() float64 {
	tolerance := 0.0
	for metric, below := range p.ScaleInBelow {
		tolerance = max(tolerance, 1-below/p.Targets[metric])
	}
	return math.Floor(tolerance*1000) / 1000
}

// devices are the signals of devices.
var devices = map[string]bool{GPUUtilization: true, GPUMemory: true}

// OfDevices reports whether Mica measures a signal on devices. It shows that devices are in use, not that
// more are needed: one long answer makes a server 100 % busy, and vLLM takes 90 % of the memory at its start.
func OfDevices(signal string) bool { return devices[signal] }

// Holds reports whether a signal keeps replicas and never asks for more: a signal of devices beside one of
// load. A signal of devices alone does ask for more.
func (p Profile) Holds(signal string) bool {
	return OfDevices(signal) && slices.ContainsFunc(p.Triggers, func(other string) bool { return !OfDevices(other) })
}

// Rate is how fast replicas are added or removed. Percent and Pods are two limits per Period.
type Rate struct {
	// Stabilization is how long the reason must last.
	Stabilization metav1.Duration `json:"stabilization"`
	Percent       int32           `json:"percent"`
	Pods          int32           `json:"pods"`
	Period        metav1.Duration `json:"period"`
}

// Fallback applies when metrics cannot be read: after more than Failures errors, at least Replicas and all
// current replicas stay. With 0 Replicas, the current ones stay.
type Fallback struct {
	Failures int32 `json:"failures"`
	Replicas int32 `json:"replicas"`
}

// Set is all profiles and their common settings.
type Set struct {
	PollingInterval metav1.Duration `json:"pollingInterval"`
	Fallback        Fallback        `json:"fallback"`
	// ScaleOut uses the larger of its limits, ScaleIn the smaller.
	ScaleOut Rate `json:"scaleOut"`
	ScaleIn  Rate `json:"scaleIn"`

	profiles map[string]Profile
}

// Get returns the profile, or an error that lists all names.
func (s Set) Get(name string) (Profile, error) {
	p, ok := s.profiles[name]
	if !ok {
		return Profile{}, fmt.Errorf("unknown profile %q: use one of %s", name, strings.Join(s.Names(), ", "))
	}
	return p, nil
}

// Names returns the names of all profiles, sorted.
func (s Set) Names() []string { return slices.Sorted(maps.Keys(s.profiles)) }
