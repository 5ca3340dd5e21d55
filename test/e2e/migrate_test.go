//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/test/manifest"
)

// toMigrate are Deployments as they were for the device plugin: a GPU, and a share of one.
const toMigrate = `apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      nodeSelector: {kubernetes.io/hostname: %[2]s}
      containers:
        - name: workload
          image: %[3]s
          imagePullPolicy: Never
          args: [show]
          resources:
            limits:
              %[4]s: 1 # as the device plugin had it
`

// What kubectl gpu migrate prints for workloads of the device plugin is accepted as it is, and runs: by claims.
func TestMigratedManifestsRun(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 2)
	manifests := []string{
		fmt.Sprintf(toMigrate, "whole", s.hostname, s.image, "nvidia.com/gpu"),
		fmt.Sprintf(toMigrate, "share", s.hostname, s.image, "nvidia.com/gpu.shared"),
	}
	command := exec.CommandContext(t.Context(), os.Getenv("MICA_KUBECTL_GPU"), "migrate", "-f", "-")
	command.Stdin = strings.NewReader(strings.Join(manifests, "---\n"))
	var report bytes.Buffer
	command.Stderr = &report
	printed, err := command.Output()
	must(t, err, "migrate: %s", &report)
	objects, err := manifest.Read(printed)
	must(t, err, "decode what was printed:\n%s", printed)
	for _, object := range objects {
		switch object := object.(type) {
		case *resourcev1.ResourceClaimTemplate:
			_, err = s.client.ResourceV1().ResourceClaimTemplates(s.namespace).Create(t.Context(), object, metav1.CreateOptions{})
		case *appsv1.Deployment:
			_, err = s.client.AppsV1().Deployments(s.namespace).Create(t.Context(), object, metav1.CreateOptions{})
		default:
			err = fmt.Errorf("migrate printed a %T", object)
		}
		must(t, err, "apply what was printed:\n%s", printed)
	}
	for app, kind := range map[string]string{"whole": kindGPU, "share": kindTimeSlice} {
		devices := s.expectOwnDevices(s.onlyPodOf(app))
		if len(devices) != 1 || devices[0].kind != kind {
			t.Errorf("Deployment %s got %v, want one of type %s", app, deviceNames(devices), kind)
		}
	}
}

// onlyPodOf waits for the pod of a Deployment.
func (s *scenario) onlyPodOf(app string) (name string) {
	s.Helper()
	eventually(s, startTimeout, "Deployment "+app+" has a pod", func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
		switch {
		case err != nil:
			return err
		case len(pods.Items) != 1:
			return fmt.Errorf("it has %d", len(pods.Items))
		}
		name = pods.Items[0].Name
		return nil
	})
	return name
}

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
