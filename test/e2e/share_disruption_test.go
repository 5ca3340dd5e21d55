//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The tests of this file disturb the plugin or the daemons of MPS, so they run alone.

// TestMPSDaemonKilled kills the daemon of a GPU: the supervisor starts it again, pods whose
// clients lost it get an Event, others do not, and clients can connect again. So they can after
// the supervisor's pod was replaced.
func TestMPSDaemonKilled(t *testing.T) {
	m := under.onNode(t)
	s, _ := newShareScenario(t, len(under.devices))
	for i, name := range []string{"victim", "bystander"} {
		s.createTemplate(name, s.sharesFor(mpsClass, 1, amounts{"memory": "10Gi", "cores": "20"}, s.of(s.devices[i])))
		s.createPod(s.clientFromTemplate(name, name))
		s.expectLimits(name, amounts{"memory": "10Gi", "cores": "20"})
	}
	expectLost := s.followClient("victim")
	m.killMPSDaemon(t, s.devices[0])
	if message := s.waitForEvent("victim", "MPSDaemonRestarted"); !strings.Contains(message, "gpu-") {
		t.Errorf("the event does not name the device: %s", message)
	}
	expectLost()
	s.expectLimits("victim", amounts{"memory": "10Gi", "cores": "20"})
	s.createPod(s.clientFromTemplate("next", "victim"))
	s.expectLimits("next", amounts{"memory": "10Gi", "cores": "20"})
	s.expectConnected("bystander")
	s.expectNoEvent("bystander", "MPSDaemonRestarted")

	// All daemons end with their supervisor.
	supervisors := metav1.ListOptions{LabelSelector: mpsSelector, FieldSelector: "spec.nodeName=" + s.node}
	must(t, s.client.CoreV1().Pods(s.plugin.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, supervisors), "delete the supervisor's pod")
	s.waitForEvent("bystander", "MPSDaemonRestarted")
	s.createPod(s.clientFromTemplate("last", "bystander"))
	s.waitRunningNudged("last")
	s.expectLimits("last", amounts{"memory": "10Gi", "cores": "20"})
	eventually(t, startTimeout, "the supervisor is ready", func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, supervisors)
		if err == nil && (len(pods.Items) != 1 || !isReady(&pods.Items[0])) {
			err = fmt.Errorf("it has %d pods", len(pods.Items))
		}
		return err
	})
	eventually(t, goneTimeout, "the pods are gone", s.deletePods)
	s.expectUnshared()
}

// killMPSDaemon kills the process that serves a GPU, which the daemon has written down.
func (m machine) killMPSDaemon(t *testing.T, gpu device) {
	t.Helper()
	pid := m.mpsDaemonOf(t, gpu)
	must(t, syscall.Kill(pid, syscall.SIGKILL), "kill the MPS daemon %d", pid)
}

// mpsDaemonOf is the process of the daemon that serves a GPU, by its environment. Clusters beside this one on the
// machine have GPUs of the same UUIDs, but daemons in other directories.
func (m machine) mpsDaemonOf(t *testing.T, gpu device) (pid int) {
	t.Helper()
	eventually(t, startTimeout, "there is an MPS daemon for "+gpu.name, func(context.Context) error {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, entry := range entries {
			candidate, err := strconv.Atoi(entry.Name())
			if err != nil {
				continue
			}
			command, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline")) // gone, if it is
			environment, _ := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
			if strings.Contains(string(command), "nvidia-cuda-mps-control\x00-f") &&
				strings.Contains(string(environment), "CUDA_VISIBLE_DEVICES="+gpu.uuid+"\x00") &&
				strings.Contains(string(environment), "CUDA_MPS_PIPE_DIRECTORY="+m.mpsRoot+"/") {
				pid = candidate
				return nil
			}
		}
		return errors.New("no process is one")
	})
	return pid
}

// mpsSelector selects the pods of the daemons' supervisor.
const mpsSelector = "app.kubernetes.io/component=mps,app.kubernetes.io/name=mica"
