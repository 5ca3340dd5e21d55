//go:build conformance

package conformance

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"
)

var (
	nodesFlag  = flag.String("nodes", "", "label selector of the nodes to test (default all with GPUs of Mica)")
	poolFlag   = flag.String("pool", "", "label selector of an autoscaled pool whose nodes have GPUs and are free, such as eks.amazonaws.com/nodegroup=gpu")
	imageFlag  = flag.String("image", "ubuntu:24.04", "image with a shell and glibc, and nothing of NVIDIA's, for pods that look for GPUs")
	metricFlag = flag.String("metric", "mica_conformance_load", "per-Pod gauge that the custom metrics adapter passes on unchanged")
	loadFlag   = flag.String("metric-image", "registry.k8s.io/e2e-test-images/resource-consumer:1.14",
		"image of Kubernetes' resource-consumer, whose pods serve the gauge")
	scaleFlag = flag.Duration("scale-timeout", 30*time.Minute, "how long the pool may take to grow, and then to shrink")
)

const (
	// startTimeout bounds a pod's start, with the pull of its image.
	startTimeout = 5 * time.Minute
	// scrapeTimeout is that of metrics which are there from the start.
	scrapeTimeout = 2 * time.Minute
	// metricsTimeout bounds an adapter's scrapes, and the horizontal pod autoscaler's looks, 15 s apart.
	metricsTimeout = 5 * time.Minute

	pollInterval = 500 * time.Millisecond
)

var (
	under   *cluster
	results = newReport()
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if under, err = connect(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "conformance: %v\n", err)
		return 1
	}
	fmt.Println("conformance:", under)
	status := m.Run()
	results.write(os.Stdout) // hack/conformance.sh reads the last line
	return status
}

// requires makes a test that of a requirement.
func requires(t *testing.T, id string) *scenario {
	t.Helper()
	t.Cleanup(func() { results.end(id, t.Failed()) })
	return &scenario{T: t, cluster: under, requirement: id}
}

// skip ends a test that the cluster cannot run, and says what to give.
func (s *scenario) skip(format string, args ...any) {
	s.Helper()
	reason := fmt.Sprintf(format, args...)
	results.skip(s.requirement, reason)
	s.T.Skip(reason)
}
