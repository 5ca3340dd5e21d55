//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/nvmlsim/model"
)

// TestOnAnOlderKubernetes runs alone, on a control plane that hack/older.sh has behave as a Kubernetes
// whose gates of dynamic resource allocation are off. Entire GPUs are given out there, and of each
// feature that is missing the plugin says once what that takes away.
func TestOnAnOlderKubernetes(t *testing.T) {
	if os.Getenv("MICA_E2E_OLDER") == "" {
		t.Skip("this test wants an older Kubernetes: hack/older.sh runs it")
	}
	sim := under.onSimulator(t)
	s := newScenario(t, 2)
	if len(s.devices) == 0 || len(s.partitions) > 0 || len(s.shares) > 0 {
		t.Errorf("published are %d GPUs, %d partitions and %d shares; want GPUs alone, as nothing keeps their parts apart",
			len(s.devices), len(s.partitions), len(s.shares))
	}
	s.expectPluginSays("MIG partitions and shares of GPUs are not offered")

	s.createTemplate("one", s.claimFor(1))
	owners := map[string][]device{}
	for _, name := range []string{"first", "second"} {
		s.createPod(s.podFromTemplate(name, "one"))
		owners[name] = s.expectOwnDevices(name)
	}
	s.expectDistinct(owners)

	sick := sim.gpu(owners["first"][0]).Index
	t.Cleanup(func() { must(t, sim.control.SetCondition(sick, model.Condition{}), "heal the GPU") })
	must(t, sim.control.SetCondition(sick, model.Condition{RecoveryAction: "node-reboot"}), "ask for a reboot")
	must(t, sim.control.Inject(model.XID(sick, 79)), "report an error of the GPU")
	s.waitForNodeEvent("GPUFault", owners["first"][0].uuid)
	s.expectPluginSays("devices with a taint")

	class, err := s.client.ResourceV1().DeviceClasses().Get(t.Context(), s.driver, metav1.GetOptions{})
	must(t, err, "get the DeviceClass")
	if class.Spec.ExtendedResourceName != nil {
		t.Error("the DeviceClass kept its extendedResourceName: this Kubernetes has DRAExtendedResource, which the test takes to be off")
	}
}

// expectPluginSays waits until the plugin has logged, once, what it cannot offer on this cluster.
func (s *scenario) expectPluginSays(lost string) {
	s.Helper()
	eventually(s, startTimeout, "the plugin says once that "+lost, func(ctx context.Context) error {
		plugin, err := s.readyPlugin(ctx)
		if err != nil {
			return err
		}
		log, err := s.podLog(ctx, plugin.Namespace, plugin.Name, &corev1.PodLogOptions{Container: "plugin"})
		if err != nil {
			return err
		}
		lines := 0
		for line := range strings.Lines(log) {
			if strings.Contains(line, "This cluster lacks a feature") && strings.Contains(line, lost) {
				lines++
			}
		}
		if lines != 1 {
			return fmt.Errorf("it is in %d lines of its log", lines)
		}
		return nil
	})
}
