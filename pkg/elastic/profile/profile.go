// Package profile has the thresholds by which kinds of GPU workloads are scaled, and how fast:
// data in one file, which an operator may override by a file of the same form. It decides
// nothing and asks nobody.
package profile

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// What a workload is scaled by. The first two are metrics that Mica knows itself; the others
// are signals of a server of language models, which a query to Prometheus gives.
const (
	// GPUUtilization and GPUMemory are percent, of the devices of a replica.
	GPUUtilization = "gpuUtilization"
	GPUMemory      = "gpuMemory"
	// KVCache is percent of a replica's cache for keys and values that is in use.
	KVCache = "kvCache"
	// WaitingRequests and RunningRequests are counted for a replica.
	WaitingRequests = "waitingRequests"
	RunningRequests = "runningRequests"
	// TTFT is the 95th percentile of the seconds until a request's first token.
	TTFT = "ttft"
	// PromptWait is the 95th percentile of the seconds that a prompt waits to be read.
	PromptWait = "promptWait"
	// InterTokenLatency is the 95th percentile of the seconds between two tokens of an answer.
	InterTokenLatency = "interTokenLatency"
	// TokensPerSecond are those of answers, counted for a replica. What a replica can do depends on
	// model and device, and so no profile has a number for it: take it from a load test.
	TokensPerSecond = "tokensPerSecond"
)

// percentages are the signals that cannot exceed 100.
var percentages = map[string]bool{GPUUtilization: true, GPUMemory: true, KVCache: true}

// known are the names of all signals, sorted.
var known = slices.Sorted(slices.Values([]string{GPUUtilization, GPUMemory, KVCache, WaitingRequests, RunningRequests, TTFT, PromptWait, InterTokenLatency, TokensPerSecond}))

// Profile is how one kind of workload is scaled. What is in it is shared and not changed.
type Profile struct {
	Name string
	// Triggers are what a workload of this kind is scaled by, the most sensitive first.
	Triggers []string
	// Targets is, by metric or signal, the value a replica is scaled out above. There is one
	// for each of Triggers.
	Targets map[string]float64
	// ScaleInBelow is, by metric or signal, the value below which a replica is taken away. Each
	// is below its target.
	ScaleInBelow map[string]float64
	// Activation is, by metric or signal, the value above which the first replica starts; 0
	// for those that it lacks.
	Activation map[string]float64
	// Warm is how many replicas wait, loaded, besides those that are asked for.
	Warm int32
	// Cooldown is how long nothing is asked for before the last replica goes.
	Cooldown time.Duration
}

// ScaleInTolerance is how far a metric must be under its target before a replica is taken
// away, as a part of the target: the HorizontalPodAutoscaler has one number for all metrics of
// a workload, and so this is that of the metric that lets go last. It is rounded down to
// thousandths.
func (p Profile) ScaleInTolerance() float64 {
	tolerance := 0.0
	for metric, below := range p.ScaleInBelow {
		tolerance = max(tolerance, 1-below/p.Targets[metric])
	}
	return math.Floor(tolerance*1000) / 1000
}

// devices are the signals of devices, not of what serves from them.
var devices = map[string]bool{GPUUtilization: true, GPUMemory: true}

// OfDevices tells whether a signal is of devices: Mica measures it, and it says that they are
// in use, not that more are needed. A server is 100 % busy with one long answer, and vLLM takes
// 90 % of the memory at its start.
func OfDevices(signal string) bool { return devices[signal] }

// use are the signals of what a load takes, however many replicas it has. The others tell what it
// lacks, and are gone when it lacks nothing.
var use = map[string]bool{KVCache: true, RunningRequests: true, TokensPerSecond: true}

// OfUse tells whether a signal is of what a load takes.
func OfUse(signal string) bool { return use[signal] }

// UseSignals are the names of those of which OfUse is true, sorted.
func UseSignals() []string { return slices.Sorted(maps.Keys(use)) }

// Holds tells whether a signal may keep replicas and never asks for more: one of devices does so
// beside a signal of load, which tells what is needed. Alone it asks: nothing else could.
func (p Profile) Holds(signal string) bool {
	return OfDevices(signal) && slices.ContainsFunc(p.Triggers, func(other string) bool { return !OfDevices(other) })
}

// Rate is how fast replicas are added or taken away. Percent and Pods are two limits for one
// Period.
type Rate struct {
	// Stabilization is how long the wish for it must last.
	Stabilization time.Duration
	Percent       int32
	Pods          int32
	Period        time.Duration
}

// Fallback is what is done where metrics cannot be read: after more than Failures of them, at
// least Replicas are kept, and no fewer than there are. With 0 there are as many as before.
type Fallback struct {
	Failures, Replicas int32
}

// Set is all profiles, and what they have in common.
type Set struct {
	PollingInterval time.Duration
	Fallback        Fallback
	// ScaleOut takes the larger of its limits, ScaleIn the smaller.
	ScaleOut, ScaleIn Rate

	profiles map[string]Profile
}

// Get is an error, which names those that there are, where there is no profile of the name.
func (s Set) Get(name string) (Profile, error) {
	p, ok := s.profiles[name]
	if !ok {
		return Profile{}, fmt.Errorf("there is no profile %q: choose one of %s", name, strings.Join(s.Names(), ", "))
	}
	return p, nil
}

// Names are those of all profiles, sorted.
func (s Set) Names() []string { return slices.Sorted(maps.Keys(s.profiles)) }
