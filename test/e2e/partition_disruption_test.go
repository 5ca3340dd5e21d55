//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// The tests of this file disturb the plugin or the hardware, so they run alone.

// TestPartitionOfAnAdministrator partitions a GPU as an administrator does: a claim for the
// profile gets what is there, and no other GPU is cut for it. It survives its users and the
// plugin, and the rest of the GPU is offered beside it.
func TestPartitionOfAnAdministrator(t *testing.T) {
	m := under.onNode(t)
	s, sim := newPartitionScenario(t, len(under.devices))
	gpu := s.devices[len(s.devices)-1]
	place := slices.IndexFunc(s.partitions, func(p device) bool {
		return p.text("parentUUID") == gpu.uuid && p.text("profile") == s.smallest()
	})
	name := s.partitions[place].name
	foreign := sim.partition(gpu, s.smallest(), startOf(t, name))
	s.expectOffered(name, foreign)
	s.expectNotOffered(gpu.name)
	modes := sim.migModes()

	s.createTemplate("foreign", s.partitionsFor(1, s.is("profile", s.smallest())))
	s.createTemplate("beside", s.partitionsFor(1, s.onGPU(gpu)))
	s.createPod(s.podFromTemplate("user", "foreign"))
	s.createPod(s.podFromTemplate("neighbour", "beside"))
	if got := s.expectOwnDevices("user")[0]; got.uuid != foreign {
		t.Errorf("the pod got the partition %s, want %s", got.uuid, foreign)
	}
	if now := sim.migModes(); !slices.Equal(now, modes) {
		t.Errorf("the MIG modes of the GPUs are %v, and were %v before the claims", now, modes)
	}
	s.expectDistinct(map[string][]device{"user": s.expectOwnDevices("user"), "neighbour": s.expectOwnDevices("neighbour")})
	s.deletePod("neighbour")
	_, err := m.killPlugin(t.Context())
	must(t, err, "kill the plugin")
	defer s.renewPlugin()
	s.expectNodeSettles()
	s.deletePod("user")
	s.expectNodeSettles()

	after := sim.gpu(gpu)
	if len(after.Instances) != 1 || len(after.Instances[0].ComputeInstances) != 1 || after.Instances[0].ComputeInstances[0].UUID != foreign {
		t.Errorf("only the partition %s should be left, and the GPU has %v", foreign, after.Instances)
	}
	s.expectOffered(name, foreign)
}

// migModes are those of all GPUs, by index.
func (sim simulator) migModes() []string {
	sim.Helper()
	state, err := sim.control.State()
	must(sim, err, "ask the simulator")
	var modes []string
	for _, g := range state.GPUs {
		modes = append(modes, g.MIGMode)
	}
	return modes
}

// partition makes a partition as an administrator does, and unmakes it after the test.
func (sim simulator) partition(gpu device, profile string, start int) (uuid string) {
	sim.Helper()
	index := sim.gpu(gpu).Index
	must(sim, sim.control.SetMIGMode(index, true), "enable MIG on %s", gpu.name)
	created, err := sim.control.CreateInstance(index, profile, &start)
	must(sim, err, "partition %s", gpu.name)
	sim.Cleanup(func() {
		must(sim, errors.Join(sim.control.DestroyInstance(index, created.ID), sim.control.SetMIGMode(index, false)), "unmake the partition of %s", gpu.name)
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		must(sim, until(ctx, under.expectDevicesOfTheStart), "wait for the devices of the start")
	})
	return created.ComputeInstances[0].UUID
}

// startOf is the first memory slice of a partition, the end of its name.
func startOf(t *testing.T, name string) int {
	t.Helper()
	var start int
	_, err := fmt.Sscan(name[strings.LastIndex(name, "-")+1:], &start)
	must(t, err, "read the placement in the name %s", name)
	return start
}

// expectOffered waits until the device is published with the UUID.
func (s *scenario) expectOffered(name, uuid string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("%s is offered as %s", name, uuid), func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(published[s.node], func(d device) bool { return d.name == name && d.uuid == uuid }) {
			return fmt.Errorf("none of %d devices is", len(published[s.node]))
		}
		return nil
	})
}

// expectNotOffered waits until the device is not published any more: it may be in another
// slice than the one that has changed first.
func (s *scenario) expectNotOffered(name string) {
	s.Helper()
	eventually(s, startTimeout, name+" is offered no more", func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err == nil && slices.Contains(deviceNames(published[s.node]), name) {
			err = errors.New("it still is")
		}
		return err
	})
}
