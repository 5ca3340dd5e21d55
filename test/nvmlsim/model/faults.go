package model

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// faults are the latencies and failures that a test asked for. Machine.mu guards it.
type faults struct {
	latencies map[moment]time.Duration
	failures  []Failure
	// stalled is when the driver goes on after a stall.
	stalled time.Time
}

// moment is when in a call of a function something happens.
type moment struct {
	function string
	after    bool
}

// recordable reports whether a fault of function, after its effect or before, can be asked for.
func recordable(function string, after bool) error {
	if function == AnyFunction && !after {
		return nil
	}
	if err := known(function); err != nil || !after {
		return err
	}
	return hasEffect(function)
}

var versionSuffix = regexp.MustCompile(`_v\d+$`)

// names returns the names under which a fault for function may be recorded.
func names(function string) []string {
	if base := versionSuffix.ReplaceAllString(function, ""); base != function {
		return []string{function, base}
	}
	return []string{function}
}

func (f *faults) setLatency(function string, latency time.Duration, after bool) error {
	if err := recordable(function, after); err != nil {
		return err
	}
	at := moment{function, after}
	if latency < 0 {
		return fmt.Errorf("latency %s of %s is negative", latency, function)
	}
	if latency == 0 {
		delete(f.latencies, at)
		return nil
	}
	if f.latencies == nil {
		f.latencies = map[moment]time.Duration{}
	}
	f.latencies[at] = latency
	return nil
}

func (f *faults) add(failure Failure) error {
	if err := known(failure.Function); err != nil {
		return err
	}
	if err := recordable(failure.Function, failure.After); err != nil {
		return err
	}
	if failure.Return == nvml.SUCCESS {
		return fmt.Errorf("a failure of %s cannot return SUCCESS", failure.Function)
	}
	if failure.Times < 0 {
		return fmt.Errorf("a failure of %s cannot happen %d times", failure.Function, failure.Times)
	}
	f.failures = append(f.failures, failure)
	return nil
}

// latency is how long a call of function takes before its effect, or after it.
func (f *faults) latency(function string, after bool) time.Duration {
	for _, name := range names(function) {
		if d, found := f.latencies[moment{name, after}]; found {
			return d
		}
	}
	return f.latencies[moment{AnyFunction, after}]
}

// failure returns what a call of function on gpu (nil for a call on none) fails
// with, and uses up one of the calls that the failure is limited to.
func (f *faults) failure(function string, g *gpu, after bool) nvml.Return {
	for i := range f.failures {
		failure := &f.failures[i]
		if failure.After != after || !slices.Contains(names(function), failure.Function) {
			continue
		}
		if failure.GPU != nil && (g == nil || g.index != *failure.GPU) {
			continue
		}
		ret := failure.Return
		if failure.Times > 0 {
			failure.Times--
			if failure.Times == 0 {
				f.failures = slices.Delete(f.failures, i, i+1)
			}
		}
		return ret
	}
	return nvml.SUCCESS
}

func (f *faults) latencyStates() []LatencyState {
	var states []LatencyState
	for at, latency := range f.latencies {
		states = append(states, LatencyState{Function: at.function, Latency: latency, After: at.after})
	}
	slices.SortFunc(states, func(a, b LatencyState) int {
		if c := strings.Compare(a.Function, b.Function); c != 0 || a.After == b.After {
			return c
		}
		if b.After {
			return -1
		}
		return 1
	})
	return states
}
