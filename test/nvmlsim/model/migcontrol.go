package model

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// SetMIGMode implements Control.
func (m *Machine) SetMIGMode(index int, enabled bool) error {
	mode := nvml.DEVICE_MIG_DISABLE
	if enabled {
		mode = nvml.DEVICE_MIG_ENABLE
	}
	return m.changeMIG(index, func(g *gpu) error {
		if g.setMIGMode(mode, m.held(g, nil)) == nvml.ERROR_IN_USE {
			return fmt.Errorf("GPU %d is in use, by its instances, by a process or by a client of NVML, so that MIG cannot be switched to %q now; it is %q and %q is pending",
				index, g.migModeText(mode), g.migModeText(g.migMode.current), g.migModeText(g.migMode.pending))
		}
		return nil
	})
}

// CreateInstance implements Control.
func (m *Machine) CreateInstance(index int, profile string, start *int) (InstanceState, error) {
	var state InstanceState
	err := m.changeMIG(index, func(g *gpu) error {
		if !g.migEnabled() {
			return fmt.Errorf("MIG is not enabled on GPU %d; it is %q and %q is pending", index, g.migModeText(g.migMode.current), g.migModeText(g.migMode.pending))
		}
		i, err := g.createByName(profile, start)
		if err != nil {
			return err
		}
		if _, ret := i.createCompute(i.wholeComputeProfile()); ret != nvml.SUCCESS {
			return fmt.Errorf("create the compute instance of GPU instance %d of GPU %d: %w", i.id, index, ret)
		}
		state = i.state()
		return nil
	})
	return state, err
}

// DestroyInstance implements Control.
func (m *Machine) DestroyInstance(index, instance int) error {
	return m.changeMIG(index, func(g *gpu) error {
		i, err := g.instance(instance)
		if err != nil {
			return err
		}
		if i.inUse() {
			return fmt.Errorf("GPU instance %d of GPU %d is in use by a process", instance, index)
		}
		i.end()
		return nil
	})
}

// Occupy implements Control.
func (m *Machine) Occupy(index int, instance *int, inUse bool) error {
	return m.changeMIG(index, func(g *gpu) error {
		if instance == nil {
			g.occupied = inUse
			return nil
		}
		i, err := g.instance(*instance)
		if err != nil {
			return err
		}
		i.occupied = inUse
		return nil
	})
}

// Reboot implements Control.
func (m *Machine) Reboot() error {
	ctx, cancel := context.WithTimeout(context.Background(), ControlPatience)
	defer cancel()
	release, err := m.reserveAll(ctx)
	if err != nil {
		return err
	}
	defer release()
	m.mu.Lock()
	for s := range m.sessions {
		for set := range s.sets {
			set.queue = nil
		}
	}
	m.mu.Unlock()
	m.restartGPUs()
	return nil
}

// reserveAll waits for the right to change all GPUs, until ctx ends.
func (m *Machine) reserveAll(ctx context.Context) (release func(), err error) {
	var releases []func()
	release = func() {
		for _, one := range releases {
			one()
		}
	}
	for _, g := range m.gpus {
		one, err := m.reserve(ctx, g)
		if err != nil {
			release()
			return nil, err
		}
		releases = append(releases, one)
	}
	return release, nil
}

func (m *Machine) restartGPUs() {
	for _, g := range m.gpus {
		_ = m.apply(g, func() nvml.Return { m.endContexts(g); g.reboot(); return nvml.SUCCESS })
	}
}

// reboot leaves a GPU as it is after the machine has started. Ampere keeps its
// MIG mode in its InfoROM; from Hopper on the mode goes with the driver's state.
func (g *gpu) reboot() {
	g.endInstances()
	if g.resetless() {
		g.migMode.pending = nvml.DEVICE_MIG_DISABLE
	}
	g.migMode.current, g.occupied = g.migMode.pending, false
	if g.presence == Lost {
		g.presence = Present
	}
	g.persistence = nvml.FEATURE_DISABLED
	g.computeMode, g.timeslice, g.work = nvml.COMPUTEMODE_DEFAULT, TimesliceDefault, work{}
	g.condition, g.recovering = Condition{RemapFailed: g.condition.RemapFailed}, nil
}

func (g *gpu) endInstances() {
	for _, i := range g.instances.byID {
		i.end()
	}
}

// changeMIG makes a change of a GPU that can be partitioned. No fault that was
// injected touches it.
func (m *Machine) changeMIG(index int, work func(*gpu) error) error {
	g, err := m.gpu(index)
	if err != nil {
		return err
	}
	if g.board.MIG == nil {
		return fmt.Errorf("GPU %d of machine %q is a %s, which cannot be partitioned", index, m.file.Name, g.board.ProductName)
	}
	ctx, cancel := context.WithTimeout(context.Background(), ControlPatience)
	defer cancel()
	release, err := m.reserve(ctx, g)
	if err != nil {
		return err
	}
	defer release()
	_ = m.apply(g, func() nvml.Return {
		if err = work(g); err != nil {
			return nvml.ERROR_UNKNOWN
		}
		return nvml.SUCCESS
	})
	return err
}

func (g *gpu) instance(id int) (*gpuInstance, error) {
	if i := g.instances.byID[id]; i != nil {
		return i, nil
	}
	return nil, fmt.Errorf("GPU %d has no GPU instance %d; it has %v", g.index, id, slices.Sorted(maps.Keys(g.instances.byID)))
}

// Instances returns the MIG instances of a GPU now.
func (m *Machine) Instances(index int) []InstanceState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gpus[index].instanceStates()
}

// instanceStates is called with Machine.mu held.
func (g *gpu) instanceStates() []InstanceState {
	var states []InstanceState
	for _, id := range slices.Sorted(maps.Keys(g.instances.byID)) {
		states = append(states, g.instances.byID[id].state())
	}
	return states
}

func (i *gpuInstance) state() InstanceState {
	state := InstanceState{
		ID: i.id, Profile: i.profile.Name, ProfileID: i.profile.ID, Start: i.start, Size: i.profile.Size,
		InUse: i.inUse(), Use: i.work.UseState, Capability: i.capability(),
	}
	for _, id := range slices.Sorted(maps.Keys(i.compute)) {
		c := i.compute[id]
		state.ComputeInstances = append(state.ComputeInstances, ComputeInstanceState{
			ID: c.id, Profile: c.profileName(), ProfileID: c.profile.id, Start: c.start, Size: c.profile.slices,
			UUID: c.uuid, Index: c.index(), Capability: c.capability(),
		})
	}
	return state
}
