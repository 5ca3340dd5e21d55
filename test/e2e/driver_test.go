//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// deployLabel is how k8s-driver-manager asks for the driver: what keeps it in use leaves
// the node while the label is one of its values for a pause.
const (
	deployLabel = "nvidia.com/gpu.deploy.dra-driver"
	paused      = "paused-for-driver-upgrade"
)

// TestDriverIsReplacedAndGoes upgrades the NVIDIA driver while a pod runs, and takes it from the node. It
// runs alone.
func TestDriverIsReplacedAndGoes(t *testing.T) {
	sim := under.onSimulator(t)
	s := newScenario(t, len(under.devices))
	state, err := sim.control.State()
	must(t, err, "ask the simulator")
	version := state.Driver.Library
	const upgraded = "590.44.01"
	t.Cleanup(func() {
		s.replaceDriver(sim, model.Driver{Library: version, Module: version})
		s.expectPublished(len(under.published()))
		s.expectAgents()
	})

	s.createTemplate("one", s.claimFor(1))
	s.createPod(s.podFromTemplate("first", "one"))
	first := s.expectOwnDevices("first")
	before := s.waitRunning("first")

	// The packages are upgraded, and the kernel module is not: no new pod gets a GPU.
	sim.set(model.Driver{Library: upgraded})
	s.expectPublished(0)
	s.createPod(s.podFromTemplate("second", "one"))
	s.expectUnschedulable("second")
	sim.set(model.Driver{Module: upgraded})
	s.waitRunningWithin(retryTimeout, "second")
	s.expectDistinct(map[string][]device{"first": first, "second": s.expectOwnDevices("second")})
	if now := s.waitRunning("first"); containerRun(now) != containerRun(before) {
		t.Errorf("the running pod was disturbed: its container was %s, is %s", containerRun(before), containerRun(now))
	}
	s.deletePod("first")

	s.replaceDriver(sim, model.Driver{Library: model.NoDriver, Module: model.NoDriver})
	s.expectPublished(0)
	s.deletePod("second")
}

// set changes the driver, once no process has a kernel module open that has to go.
func (sim simulator) set(d model.Driver) {
	sim.Helper()
	lasting(sim, fmt.Sprintf("the driver becomes %+v", d), func(context.Context) error { return sim.control.SetDriver(d) })
}

// lasting is eventually, in clean-ups too.
func lasting(t testing.TB, what string, check func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), retryTimeout)
	defer cancel()
	must(t, until(ctx, check), "%s", what)
}

// replaceDriver does so while the plugin is away, as k8s-driver-manager does.
func (s *scenario) replaceDriver(sim simulator, d model.Driver) {
	s.Helper()
	s.labelNode(deployLabel, paused)
	sim.set(d)
	s.labelNode(deployLabel, nil)
}

// expectAgents waits until the plugin and the MPS supervisor run again that left the node. A DaemonSet counts
// a pod that ends as ready for as long as it answers.
func (s *scenario) expectAgents() {
	s.Helper()
	lasting(s, "the plugin and the MPS supervisor are ready", func(ctx context.Context) error {
		sets, err := s.client.AppsV1().DaemonSets(s.plugin.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, set := range sets.Items {
			status := set.Status
			if status.ObservedGeneration != set.Generation || status.DesiredNumberScheduled == 0 || status.NumberReady != status.DesiredNumberScheduled {
				return fmt.Errorf("%s: %d of %d pods are ready", set.Name, status.NumberReady, status.DesiredNumberScheduled)
			}
		}
		pods, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + s.node})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "DaemonSet" {
				continue
			}
			if pod.DeletionTimestamp != nil || !isReady(pod) {
				return fmt.Errorf("pod %s ends or is not ready: %s", pod.Name, summary(pod))
			}
		}
		return nil
	})
}

// labelNode sets a label of the node, nil for none.
func (s *scenario) labelNode(key string, value any) {
	s.Helper()
	patch, err := mergePatch(map[string]any{"metadata": map[string]any{"labels": map[string]any{key: value}}})
	must(s, err, "encode a label")
	lasting(s, "node "+s.node+" has its label", func(ctx context.Context) error {
		_, err := s.client.CoreV1().Nodes().Patch(ctx, s.node, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// expectPublished waits until the node offers that many devices.
func (s *scenario) expectPublished(devices int) {
	s.Helper()
	lasting(s, fmt.Sprintf("node %s offers %d devices", s.node, devices), func(ctx context.Context) error {
		published, err := s.publishedDevices(ctx)
		if err != nil {
			return err
		}
		if now := published[s.node]; len(now) != devices {
			return fmt.Errorf("it offers %d: %v", len(now), deviceNames(now))
		}
		return nil
	})
}
