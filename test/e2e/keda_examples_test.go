//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// testKEDAExamples applies the examples of scaling. If a ScaledObject begins with a command, it applies the
// command's output for the test's namespace.
func testKEDAExamples(t *testing.T) {
	t.Parallel()
	for directory, count := range map[string]int{"llm-serving": 1, "prefill-decode": 2, "batch": 1, "warm-pool": 1, "queue": 1} {
		t.Run(directory, func(t *testing.T) {
			t.Parallel()
			s := &scaleOut{scenario: newScenario(t, 0)}
			files, err := filepath.Glob(filepath.Join(examplesDirectory, directory, "*.yaml"))
			must(t, err, "list the examples")
			slices.SortFunc(files, func(a, b string) int { return strings.Compare(b, a) }) // a workload before what scales it
			applied := 0
			for _, file := range files {
				content, err := os.ReadFile(file)
				must(t, err, "read the example")
				if line, found := strings.CutPrefix(strings.SplitN(string(content), "\n", 2)[0], "# kubectl gpu scaledobject "); found {
					content = s.printScaledObject(line)
				}
				content = bytes.ReplaceAll(content, []byte("address: redis.default:"), []byte("address: redis.keda.svc:")) // the tests' own
				for _, name := range s.applyAsUser(content) {
					applied++
					d := &scaled{s, name}
					d.waiting(0)
					t.Cleanup(d.unscale)
					d.expectStatusCondition("Ready", "True", "ScaledObjectReady")
					d.expectHealthy()
				}
			}
			if applied != count {
				t.Errorf("%d of %q are ScaledObjects, want %d", applied, files, count)
			}
		})
	}
}

// expectHealthy reads every metric, and waits until KEDA says that none had to be guessed.
func (s *scaled) expectHealthy() {
	s.Helper()
	eventually(s, scaleTimeout, "KEDA reads all metrics of "+s.name, func(ctx context.Context) error {
		object, err := s.scaledObjects().Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		triggers, _, _ := unstructured.NestedSlice(object.Object, "spec", "triggers")
		names, _, _ := unstructured.NestedStringSlice(object.Object, "status", "externalMetricNames")
		if len(names) != len(triggers) {
			return fmt.Errorf("there are %d triggers and the metrics %q", len(triggers), names)
		}
		for i, name := range names {
			if trigger, _ := triggers[i].(fields); strings.Contains(fmt.Sprint(trigger["metadata"]), "rabbitmq") {
				return nil // a queue that is not here
			}
			if _, err := s.value(ctx, name); err != nil {
				return err
			}
			if _, falls, _ := unstructured.NestedMap(object.Object, "spec", "fallback"); !falls {
				continue // KEDA makes nothing up
			}
			// After some failures a value is made up, and only this says so.
			if status, _, _ := unstructured.NestedString(object.Object, "status", "health", name, "status"); status != "Happy" {
				return fmt.Errorf("metric %s is %q", name, status)
			}
		}
		return nil
	})
}

// printScaledObject runs kubectl gpu scaledobject with arguments as a shell splits them. The simulated models
// are in one pod of another namespace, so that they are told by their names, or by the pods that Prometheus
// makes of these.
func (s *scaleOut) printScaledObject(arguments string) []byte {
	s.Helper()
	if strings.Contains(arguments, "--model ") {
		arguments += " --own-series=false"
	}
	command := exec.CommandContext(s.Context(), "sh", "-c", `exec "$0" scaledobject --namespace "$1" --prometheus "$2" `+arguments, os.Getenv("MICA_KUBECTL_GPU"), s.namespace, prometheusAddress())
	var notes strings.Builder
	command.Stderr = &notes
	output, err := command.Output()
	must(s, err, "run kubectl gpu scaledobject %s: %s", arguments, &notes)
	return bytes.ReplaceAll(output, fmt.Appendf(nil, "namespace=%q,", s.namespace), nil)
}

// applyAsUser applies all objects of a file in the scenario's namespace, and returns the names of the
// ScaledObjects. Pods wait for a node that there is not: the images of the examples are not here.
func (s *scaleOut) applyAsUser(content []byte) (scaledObjects []string) {
	s.Helper()
	applier := s.applier()
	for _, document := range strings.Split(string(content), "\n---\n") {
		object := &unstructured.Unstructured{}
		must(s, yaml.Unmarshal([]byte(document), &object.Object), "decode %s", document)
		switch object.GetKind() {
		case "Deployment":
			must(s, unstructured.SetNestedField(object.Object, "none", "spec", "template", "spec", "nodeSelector", "e2e.mica.gpu/node"), "keep pods from nodes")
		case "ScaledObject":
			scaledObjects = append(scaledObjects, object.GetName())
		}
		applier.apply(object, false)
	}
	return scaledObjects
}
