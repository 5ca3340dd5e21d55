package model

import (
	"cmp"
	"fmt"
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
