package model

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// effective are the functions that have an effect on a GPU, so that a failure or
// a latency can come after it.
var effective = []string{
	"nvmlComputeInstanceDestroy",
	"nvmlDeviceCreateGpuInstanceWithPlacement",
	"nvmlDeviceSetComputeMode",
	"nvmlDeviceSetMigMode",
	"nvmlDeviceSetPersistenceMode",
	"nvmlGpuInstanceCreateComputeInstance",
	"nvmlGpuInstanceDestroy",
	"nvmlSimDeviceReset",
	"nvmlSimDeviceSetTimeslice",
}

func hasEffect(function string) error {
	if slices.Contains(effective, function) {
		return nil
	}
	return fmt.Errorf("%s has no effect that anything could come after", function)
}

// change carries out a function that changes the instances of the handle's GPU.
// The driver makes one such change of a GPU at a time and makes the capability
// devices before it returns. work is called with Machine.mu held.
func (r refuser) change(function string, work func() nvml.Return) nvml.Return {
	s := r.session
	if ret := s.initialised(); ret != nvml.SUCCESS {
		return ret
	}
	select {
	case r.gpu.changing <- struct{}{}:
		defer func() { <-r.gpu.changing }()
	case <-s.closed:
		return nvml.ERROR_UNINITIALIZED
	}
	if ret := r.enter(function); ret != nvml.SUCCESS {
		return ret
	}
	if !s.mayConfigure() {
		return nvml.ERROR_NO_PERMISSION
	}
	if ret := s.machine.apply(r.gpu, work); ret != nvml.SUCCESS {
		return ret
	}
	return s.leave(function, r.gpu)
}

// apply does the work and calls the watchers with the result. The caller holds
// the right to change the GPU.
func (m *Machine) apply(g *gpu, work func() nvml.Return) nvml.Return {
	m.mu.Lock()
	ret := work()
	states, watchers := g.instanceStates(), slices.Clone(m.watchers)
	m.mu.Unlock()
	if ret != nvml.SUCCESS {
		return ret
	}
	for _, changed := range watchers {
		changed(g.index, states)
	}
	return nvml.SUCCESS
}

// leave is where a function that has had its effect may still take its time and
// fail.
func (s *Session) leave(function string, g *gpu) nvml.Return {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	s.lag(function, g, true)
	return s.machine.faults.failure(function, g, true)
}

func (s *Session) initialised() nvml.Return {
	s.machine.mu.Lock()
	defer s.machine.mu.Unlock()
	if s.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	return nvml.SUCCESS
}

// WatchInstances calls changed after every change of a GPU's MIG instances and
// before the call that made it returns: never twice at a time for one GPU.
func (m *Machine) WatchInstances(changed func(gpu int, instances []InstanceState)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.watchers = append(m.watchers, changed)
}

// ControlPatience bounds how long a control request waits for calls that are
// changing GPUs, all of them together; such a call may have been given a latency
// of any length.
const ControlPatience = 5 * time.Second

// reserve waits for the right to change a GPU, for requests that no session
// makes, until ctx ends.
func (m *Machine) reserve(ctx context.Context, g *gpu) (release func(), err error) {
	select {
	case g.changing <- struct{}{}:
		return func() { <-g.changing }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("a call that changes the MIG instances of GPU %d of machine %q is under way and does not end; "+
			"remove the latency that it was given, or end its process", g.index, m.file.Name)
	}
}
