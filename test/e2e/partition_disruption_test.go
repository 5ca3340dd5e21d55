//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// The tests of this file disturb the plugin or the hardware, so they run alone.

// The functions of NVML that make and unmake a partition.
const (
	createInstance  = "nvmlDeviceCreateGpuInstanceWithPlacement"
	destroyInstance = "nvmlGpuInstanceDestroy"
)

// slow is long enough to kill the plugin during a call.
const slow = 3 * time.Second

// TestPluginKilledWhileAPartitionIsMadeAndUnmade kills the plugin when the partition exists
// and nobody has been told of it yet, and once more before it is destroyed.
func TestPluginKilledWhileAPartitionIsMadeAndUnmade(t *testing.T) {
	m := under.onNode(t)
	s, sim := newPartitionScenario(t, len(under.devices))
	s.createTemplate("one", s.partitionsFor(1, s.onGPU(s.devices[0])))

	sim.disturb(sim.control.SetLatencyAfter(createInstance, slow))
	s.createPod(s.podFromTemplate("pod", "one"))
	sim.waitForSlowCall(createInstance)
	m.killAnyPlugin(t)
	sim.disturb(sim.control.Clear())
	s.waitRunningNudged("pod")
	partition := s.expectOwnDevices("pod")[0]
	if instances := sim.gpu(s.devices[0]).Instances; len(instances) != 1 {
		t.Errorf("the pod has the partition %s, and the GPU has %d instances: %v", partition.uuid, len(instances), instances)
	}
	s.expectPluginReady()
	s.expectNodeSettles()

	sim.disturb(sim.control.SetLatency(destroyInstance, slow))
	s.beginDeletion("pod")
	sim.waitForSlowCall(destroyInstance)
	m.killAnyPlugin(t)
	sim.disturb(sim.control.Clear())
	s.expectPluginReady()
	s.deletePod("pod")
	s.expectNodeSettles()
	s.expectUnpartitioned()
}

// TestPartitionOfSomebodyElse partitions a GPU as an administrator does: what is there is
// offered as it is and survives its users and the plugin, and the rest of the GPU is
// offered beside it.
func TestPartitionOfSomebodyElse(t *testing.T) {
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

	s.createTemplate("foreign", s.partitionsFor(1, s.is("uuid", foreign)))
	s.createTemplate("beside", s.partitionsFor(1, s.onGPU(gpu)))
	s.createPod(s.podFromTemplate("user", "foreign"))
	s.createPod(s.podFromTemplate("neighbour", "beside"))
	if got := s.expectOwnDevices("user")[0]; got.uuid != foreign {
		t.Errorf("the pod got the partition %s, want %s", got.uuid, foreign)
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

// TestPartitionTakenBehindOurBack destroys the partition of a running pod, and switches MIG
// off as well: the claim ends as any other, and the next one gets a partition.
func TestPartitionTakenBehindOurBack(t *testing.T) {
	s, sim := newPartitionScenario(t, len(under.devices))
	gpu := s.devices[0]
	index := sim.gpu(gpu).Index
	s.createTemplate("one", s.partitionsFor(1, s.onGPU(gpu)))
	behindOurBack := map[string]func(instance int) error{
		"destroyed": func(instance int) error { return sim.control.DestroyInstance(index, instance) },
		"mig-off": func(instance int) error {
			return errors.Join(sim.control.DestroyInstance(index, instance), sim.control.SetMIGMode(index, false))
		},
	}
	for name, take := range behindOurBack {
		s.createPod(s.podFromTemplate(name, "one"))
		s.expectOwnDevices(name)
		must(t, take(sim.gpu(gpu).Instances[0].ID), "take the partition away")
		s.deletePod(name)
		s.expectNodeSettles()
		s.expectUnpartitioned()
	}
}

// TestPartitionInUseIsUnmadeLater lets a process use the partition after its pod's end: it
// is remembered, and unmade when the process ends.
func TestPartitionInUseIsUnmadeLater(t *testing.T) {
	m := under.onNode(t)
	s, sim := newPartitionScenario(t, len(under.devices))
	gpu := s.devices[0]
	index := sim.gpu(gpu).Index
	s.createTemplate("one", s.partitionsFor(1, s.onGPU(gpu)))
	s.createPod(s.podFromTemplate("pod", "one"))
	partition := s.expectOwnDevices("pod")[0]
	uid := string(s.claimOf(s.waitRunning("pod")).UID)
	instance := sim.gpu(gpu).Instances[0].ID
	must(t, sim.control.Occupy(index, &instance, true), "occupy the partition")

	s.beginDeletion("pod")
	eventually(t, startTimeout, "unpreparing has begun", func(ctx context.Context) error {
		specs, err := m.specFiles(ctx)
		if err == nil && specs[uid] != "" {
			err = fmt.Errorf("the CDI file %s is still there", specs[uid])
		}
		return err
	})
	records, err := m.records(t.Context())
	must(t, err, "list the records")
	if records[uid] == "" {
		t.Error("the claim's record is gone while its partition exists")
	}
	if got := sim.gpu(gpu).Instances; len(got) != 1 || got[0].ComputeInstances[0].UUID != partition.uuid {
		t.Errorf("while it is in use the partition %s became %v", partition.uuid, got)
	}
	must(t, sim.control.Occupy(index, &instance, false), "vacate the partition")
	s.deletePod("pod")
	s.expectNodeSettles()
	s.expectUnpartitioned()
}

// insufficientResources is NVML_ERROR_INSUFFICIENT_RESOURCES.
const insufficientResources = 23

// TestGPUThatCannotBePartitioned fails the pods of one GPU with a sentence, and no others.
func TestGPUThatCannotBePartitioned(t *testing.T) {
	s, sim := newPartitionScenario(t, len(under.devices))
	if len(s.devices) < 2 {
		skip(t, "it needs two GPUs")
	}
	index := sim.gpu(s.devices[0]).Index
	sim.disturb(sim.control.Fail(model.Failure{Function: createInstance, Return: insufficientResources, GPU: &index}))
	s.createClaim("bad", s.partitionsFor(1, s.onGPU(s.devices[0])))
	s.createPod(s.podSharing("bad", "bad"))
	s.createTemplate("good", s.partitionsFor(1, s.onGPU(s.devices[1])))
	s.createPod(s.podFromTemplate("good", "good"))
	expectCount(t, s.expectOwnDevices("good"), 1)

	message := s.waitForEvent("bad", reasonPrepareFailed)
	for _, text := range []string{s.namespace + "/bad", fmt.Sprintf("%q", requestName), s.devices[0].uuid} {
		if !strings.Contains(message, text) {
			t.Errorf("the event says:\n%s\nwhich lacks: %s", message, text)
		}
	}
	s.expectNoEvent("good", reasonPrepareFailed)
	if got := sim.gpu(s.devices[0]); len(got.Instances) > 0 || got.MIGMode != migDisabled {
		t.Errorf("after the failure the GPU has MIG %s and the instances %v", got.MIGMode, got.Instances)
	}
	sim.disturb(sim.control.Clear())
	s.waitRunningNudged("bad")
	expectCount(t, s.expectOwnDevices("bad"), 1)
}
