//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The chart's own test gets a GPU, and leaves nothing.
func TestHelmTest(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 1)
	helm := os.Getenv("MICA_HELM")
	if helm == "" {
		skip(t, "MICA_HELM names no helm")
	}
	// A pod that kubelet was refused the claim of is tried again after 60 to 90 seconds, one that the scheduler has
	// forgotten after five minutes: nothing here makes them try sooner.
	output, err := exec.CommandContext(t.Context(), helm, "test", "mica", "--namespace", s.plugin.namespace, "--timeout", "6m").CombinedOutput()
	must(t, err, "helm test:\n%s", output)
	if !bytes.Contains(output, []byte("Succeeded")) {
		t.Errorf("helm test printed:\n%s", output)
	}
	eventually(t, goneTimeout, "the test's objects are gone", func(ctx context.Context) error {
		options := metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=test"}
		pods, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, options)
		if err == nil && len(pods.Items) > 0 {
			err = errors.New(podNames(pods.Items))
		}
		return err
	})
}

func podNames(pods []corev1.Pod) string {
	names := make([]string, len(pods))
	for i, pod := range pods {
		names[i] = pod.Name
	}
	return strings.Join(names, ", ")
}
