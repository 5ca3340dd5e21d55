//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
	"github.com/mica-gpu/mica/test/nvmlsim/wire"
)

// migDisabled is how the simulator writes the mode.
const migDisabled = "Disabled"

// simulator is the node's simulated hardware, on which a test does what an administrator or
// a failing GPU would, and sees what the driver has done.
type simulator struct {
	testing.TB
	control wire.Client
}

// onSimulator returns access to the simulated hardware, or skips the test.
func (in *installation) onSimulator(t testing.TB) simulator {
	t.Helper()
	client, found := simulated()
	if !found {
		skip(t, "MICA_SIM_SOCKET is not set, so the hardware is not known to be simulated")
	}
	return simulator{t, client}
}

func simulated() (wire.Client, bool) {
	socket := os.Getenv("MICA_SIM_SOCKET")
	return wire.Client{Socket: socket}, socket != ""
}

// gpu is the state of a published GPU.
func (sim simulator) gpu(d device) model.GPUState {
	sim.Helper()
	state, err := sim.control.State()
	must(sim, err, "ask the simulator")
	for _, g := range state.GPUs {
		if g.UUID == d.uuid {
			return g
		}
	}
	sim.Fatalf("the simulator has no GPU %s", d.uuid)
	return model.GPUState{}
}

// expectNoInstances wants GPUs on which nothing is partitioned. It says nothing where the
// hardware is not simulated, or was partitioned before the tests.
func (in *installation) expectNoInstances(context.Context) error {
	client, found := simulated()
	if !found || len(in.devices) == 0 {
		return nil
	}
	state, err := client.State()
	if err != nil {
		return err
	}
	for _, g := range state.GPUs {
		whole := slices.ContainsFunc(in.devices, func(d device) bool { return d.uuid == g.UUID })
		if whole && (len(g.Instances) > 0 || g.MIGMode != migDisabled) {
			return fmt.Errorf("GPU %d has MIG %s and %d instances: %v", g.Index, g.MIGMode, len(g.Instances), g.Instances)
		}
	}
	return nil
}

// expectUnpartitioned waits until nothing is left of any partition.
func (s *scenario) expectUnpartitioned() {
	s.Helper()
	eventually(s, startTimeout, "no GPU is partitioned any more", s.expectNoInstances)
}

// instanceAt finds the GPU instance at the place of a published partition.
func instanceAt(state model.State, partition device) (model.InstanceState, bool) {
	for _, g := range state.GPUs {
		for _, gi := range g.Instances {
			place := fmt.Sprintf("-%d-%d", gi.ProfileID, gi.Start)
			if g.UUID == partition.text("parentUUID") && strings.HasSuffix(partition.unshared(), place) {
				return gi, true
			}
		}
	}
	return model.InstanceState{}, false
}

func capabilityOf(minor int) string {
	return capability("nvidia-cap"+strconv.Itoa(minor), strconv.Itoa(minor))
}

// isDevice reports whether the MIG device with the UUID is in the instance. One without any
// is being made or unmade.
func isDevice(gi model.InstanceState, uuid string) bool {
	return slices.ContainsFunc(gi.ComputeInstances, func(ci model.ComputeInstanceState) bool { return ci.UUID == uuid })
}
