package model

import (
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/mica-gpu/mica/pkg/catalog"
)

// MIGSetup is how a GPU is partitioned when the machine starts, as an earlier
// user has left it. A GPU that has one has MIG enabled.
type MIGSetup struct {
	// Instances are created in this order.
	Instances []MIGInstance `json:"instances,omitempty"`
}

// MIGInstance is one GPU instance of a setup.
type MIGInstance struct {
	// Profile is how nvidia-smi writes it, for example "3g.20gb".
	Profile string `json:"profile"`
	// Start is the first memory unit.
	Start int `json:"start"`
	// ComputeSlices are the sizes of its compute instances; one that takes all
	// of it where none are named.
	ComputeSlices []int `json:"computeSlices,omitempty"`
}

func (s *MIGSetup) clone() *MIGSetup {
	if s == nil {
		return nil
	}
	instances := slices.Clone(s.Instances)
	for i := range instances {
		instances[i].ComputeSlices = slices.Clone(instances[i].ComputeSlices)
	}
	return &MIGSetup{Instances: instances}
}

// setUp partitions a new GPU as its description says.
func (g *gpu) setUp() error {
	setup := g.spec.MIG
	if setup == nil {
		return nil
	}
	if g.board.MIG == nil {
		return fmt.Errorf("GPU %d has mig, which its board %q does not support", g.index, g.board.Name)
	}
	g.migMode.current, g.migMode.pending = nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE
	for n, want := range setup.Instances {
		if err := g.setUpInstance(want); err != nil {
			return fmt.Errorf("MIG instance %d of GPU %d: %w", n, g.index, err)
		}
	}
	return nil
}

func (g *gpu) setUpInstance(want MIGInstance) error {
	i, err := g.createByName(want.Profile, &want.Start)
	if err != nil {
		return err
	}
	if len(want.ComputeSlices) == 0 {
		want.ComputeSlices = []int{i.profile.Slices}
	}
	for _, size := range want.ComputeSlices {
		id, known := computeProfileIDs[size]
		p, found := i.computeProfile(id)
		if !known || !found {
			return fmt.Errorf("profile %q has no compute instances of %d slices", want.Profile, size)
		}
		if _, ret := i.createCompute(p); ret != nvml.SUCCESS {
			return fmt.Errorf("the compute instances of %v slices do not fit profile %q together", want.ComputeSlices, want.Profile)
		}
	}
	return nil
}

// createByName creates an instance; its errors are sentences.
func (g *gpu) createByName(name string, start *int) (*gpuInstance, error) {
	p, found := g.board.MIG.ProfileByName(name)
	if !found {
		return nil, fmt.Errorf("board %q has no MIG profile %q; it has %s", g.board.Name, name, profileNames(g.board.MIG))
	}
	i, ret := g.create(p, start)
	switch {
	case ret == nvml.ERROR_INVALID_ARGUMENT:
		return nil, fmt.Errorf("profile %q of board %q cannot start at %d, only at %v", name, g.board.Name, *start, p.Starts)
	case ret != nvml.SUCCESS && start == nil:
		return nil, fmt.Errorf("profile %q fits nowhere beside the instances that GPU %d has", name, g.index)
	case ret != nvml.SUCCESS:
		return nil, fmt.Errorf("profile %q does not fit at %d beside the instances that GPU %d has", name, *start, g.index)
	}
	return i, nil
}

func profileNames(g *catalog.Geometry) []string {
	var names []string
	for _, p := range g.Profiles {
		names = append(names, p.Name)
	}
	return names
}
