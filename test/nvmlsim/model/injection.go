package model

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// SetLatency implements Control.
func (m *Machine) SetLatency(function string, latency time.Duration) error {
	return m.setLatency(function, latency, false)
}

// SetLatencyAfter implements Control.
func (m *Machine) SetLatencyAfter(function string, latency time.Duration) error {
	return m.setLatency(function, latency, true)
}

func (m *Machine) setLatency(function string, latency time.Duration, after bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.faults.setLatency(function, latency, after)
}

// latencyProfiles are sets of latencies with a name. The times of "realistic"
// are round numbers of the size that users of dynamic MIG report, a third of a
// second for one partition; they are no measurement.
var latencyProfiles = map[string]map[string]time.Duration{
	"realistic": {
		"nvmlInit":                                          200 * time.Millisecond,
		"nvmlDeviceSetMigMode":                              1500 * time.Millisecond,
		"nvmlDeviceCreateGpuInstance":                       200 * time.Millisecond,
		"nvmlDeviceCreateGpuInstanceWithPlacement":          200 * time.Millisecond,
		"nvmlGpuInstanceDestroy":                            100 * time.Millisecond,
		"nvmlGpuInstanceCreateComputeInstance":              100 * time.Millisecond,
		"nvmlGpuInstanceCreateComputeInstanceWithPlacement": 100 * time.Millisecond,
		"nvmlComputeInstanceDestroy":                        50 * time.Millisecond,
	},
}

// SetLatencyProfile implements Control.
func (m *Machine) SetLatencyProfile(name string) error {
	profile, found := latencyProfiles[name]
	if !found {
		return fmt.Errorf("there is no latency profile %q; there are %s", name,
			strings.Join(slices.Sorted(maps.Keys(latencyProfiles)), ", "))
	}
	for function, latency := range profile {
		if err := m.SetLatency(function, latency); err != nil {
			return err
		}
	}
	return nil
}

// Stall implements Control.
func (m *Machine) Stall(duration time.Duration) error {
	if duration < 0 {
		return fmt.Errorf("a stall cannot last %s", duration)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults.stalled = time.Now().Add(duration)
	return nil
}

// Fail implements Control.
func (m *Machine) Fail(f Failure) error {
	if f.GPU != nil {
		if _, err := m.gpu(*f.GPU); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.faults.add(f)
}

// Clear implements Control.
func (m *Machine) Clear() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.faults = faults{}
	return nil
}

// slowCalls is called with Machine.mu held.
func (m *Machine) slowCalls() []SlowCall {
	var calls []SlowCall
	for call := range m.slow {
		calls = append(calls, *call)
	}
	slices.SortFunc(calls, func(a, b SlowCall) int {
		return cmp.Or(strings.Compare(a.Function, b.Function), cmp.Compare(indexOf(a), indexOf(b)))
	})
	return calls
}

// indexOf puts calls on no GPU before all others.
func indexOf(c SlowCall) int {
	if c.GPU == nil {
		return -1
	}
	return *c.GPU
}
