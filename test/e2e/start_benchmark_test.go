//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mica-gpu/mica/test/fixture/kubelet"
)

const benchDriver = "bench.gpu.nvidia.com"

// BenchmarkStart measures the time from the start of a plugin process until the API server
// has the node's devices, of which kubelet's registration takes no part, and the size of the binary. The process has a driver name and directories of its own, so that
// the installed plugin goes on undisturbed.
func BenchmarkStart(b *testing.B) {
	binary := os.Getenv("MICA_PLUGIN_BINARY")
	if binary == "" {
		skip(b, "MICA_PLUGIN_BINARY does not name the plugin's binary")
	}
	info, err := os.Stat(binary)
	must(b, err, "look at the plugin's binary")
	var taken []time.Duration
	for b.Loop() {
		taken = append(taken, under.timeStart(b, binary))
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(median(taken)), "start-to-published-ms")
	b.ReportMetric(milliseconds(slices.Max(taken)), "worst-ms")
	b.ReportMetric(float64(info.Size())/1e6, "binary-MB")
}

// timeStart starts the binary on a node that has no slices of its driver, waits for them,
// and stops it.
func (in *installation) timeStart(b *testing.B, binary string) time.Duration {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), startTimeout)
	defer cancel()
	selector := metav1.ListOptions{FieldSelector: "spec.driver=" + benchDriver}
	slices := in.client.ResourceV1().ResourceSlices()
	must(b, slices.DeleteCollection(ctx, metav1.DeleteOptions{}, selector), "delete the slices of the last round")
	watcher, err := slices.Watch(ctx, selector)
	must(b, err, "watch slices")
	defer watcher.Stop()

	root, err := os.MkdirTemp("", "mica") // short: the sockets' paths are limited
	must(b, err, "make the plugin's directories")
	defer func() { must(b, os.RemoveAll(root), "remove the plugin's directories") }()
	must(b, os.Mkdir(filepath.Join(root, "registry"), 0o755), "make the plugin's directories")
	go kubelet.Know(ctx, filepath.Join(root, "registry"))
	driverRoot := os.Getenv("MICA_DRIVER_ROOT")
	command := exec.CommandContext(ctx, binary,
		"--node-name", in.node, "--driver-name", benchDriver, "--kubeconfig", os.Getenv("KUBECONFIG"),
		"--cdi-root", filepath.Join(root, "cdi"),
		"--kubelet-registrar-directory-path", filepath.Join(root, "registry"),
		"--kubelet-plugins-directory-path", filepath.Join(root, "plugins"),
		"--nvidia-driver-root", driverRoot, "--container-driver-root", driverRoot,
		"--nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook", // never run here
		"--healthcheck-port", "-1", "--metrics-port", "-1")
	var log bytes.Buffer
	command.Stderr = &log
	command.Cancel = func() error { return command.Process.Signal(syscall.SIGTERM) }
	start := time.Now()
	must(b, command.Start(), "start the plugin")
	for {
		event, open := <-watcher.ResultChan()
		if !open {
			b.Fatalf("no slice was published within %s; the plugin says:\n%s", startTimeout, log.String())
		}
		if event.Type == watch.Added {
			break
		}
	}
	taken := time.Since(start)
	must(b, command.Process.Signal(syscall.SIGTERM), "stop the plugin")
	if err := command.Wait(); err != nil {
		b.Errorf("the plugin stopped with %v:\n%s", err, log.String())
	}
	must(b, slices.DeleteCollection(context.WithoutCancel(ctx), metav1.DeleteOptions{}, selector), "delete the slices")
	return taken
}
