//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestConformance runs the tests of Kubernetes AI Conformance as a platform does, with all that they need: an autoscaled
// pool, and an adapter of custom metrics. What scales the pool and the adapter are stand-ins, and the pool's nodes are kwok's.
func TestConformance(t *testing.T) {
	t.Parallel()
	const group = "conformance"
	if _, err := os.Stat("../../bin/conformance.test"); err != nil {
		skip(t, "bin/conformance.test is not built")
	}
	s := newScaleOut(t, group)
	s.expectNodes(group, 1)
	s.awaitLiveTemplate(group)
	t.Cleanup(under.gpus.reserve(t, 3))
	t.Cleanup(func() { customMetrics(context.WithoutCancel(t.Context()), t, "down") })
	customMetrics(t.Context(), t, "up")

	output, err := exec.CommandContext(t.Context(), "../../hack/conformance.sh",
		"-nodes", corev1.LabelHostname+"="+under.hostname, "-pool", groupSetLabel+"="+group, "-scale-timeout", nodeTimeout.String(),
		"-image", "mica.local/sh:dev", "-metric-image", "mica.local/resource-consumer:dev").CombinedOutput()
	must(t, err, "hack/conformance.sh:\n%s", output)
	if !bytes.Contains(output, []byte("5 of 5 requirements passed, 0 failed, 0 not tested, 0 not run")) {
		t.Errorf("not every requirement has passed:\n%s", output)
	}
	// As with a real driver: test/cluster/internal/supervisor/basespec.go.
	if _, err := os.Stat("/proc/driver"); err == nil && os.Getenv("MICA_CLUSTER_DIR") != "" && !bytes.Contains(output, []byte("module NVRM version: NVIDIA UNIX")) {
		t.Errorf("the pods see no /proc/driver/nvidia/version:\n%s", output)
	}
	report, err := os.ReadFile("../../bin/conformance/junit.xml")
	must(t, err, "read the report")
	if !bytes.Contains(report, []byte(`name="TestPodAutoscaling"`)) || bytes.Contains(report, []byte("<skipped")) {
		t.Errorf("the report is\n%s", report)
	}
}

func customMetrics(ctx context.Context, t *testing.T, verb string) {
	t.Helper()
	output, err := exec.CommandContext(ctx, "../../hack/custom-metrics.sh", verb).CombinedOutput()
	must(t, err, "hack/custom-metrics.sh %s:\n%s", verb, output)
}
