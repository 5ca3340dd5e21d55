package docs

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mica-gpu/mica/test/manifest"
)

// An example has to run where it is copied to: on nodes with the usual taint, beside pods that have
// requests. What serves must also end and be drained without lost answers.
func TestExamplesRunOnTaintedNodes(t *testing.T) {
	counts := map[string]int{}
	for _, file := range examples(t) {
		objects := objectsOf(t, file)
		for _, object := range objects {
			all, err := manifest.PodsOf(object)
			if err != nil {
				t.Errorf("%s: %v", file, err)
			}
			for _, pods := range all {
				counts["workloads"]++
				expectToRun(t, file, pods)
				if pods.Forever {
					counts["services"]++
					expectToServe(t, file, pods, objects)
				}
			}
		}
	}
	if counts["workloads"] < 28 || counts["services"] < 14 {
		t.Errorf("found %v", counts)
	}
}

// The comment at the top says what an example shows, what it needs, and which state it reaches.
func TestExamplesBeginWithWords(t *testing.T) {
	for _, file := range examples(t) {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(content, []byte("# ")) {
			t.Errorf("%s begins without a comment", file)
		}
	}
}

// Readers find no example that the index does not have.
func TestTheIndexHasEveryExample(t *testing.T) {
	const directory = "../../examples"
	index, err := os.ReadFile(filepath.Join(directory, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(directory, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(directory, path)
		if err == nil && !entry.IsDir() && name != "README.md" && !bytes.Contains(index, []byte("("+name+")")) {
			t.Errorf("examples/README.md has no link to %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func expectToRun(t *testing.T, file string, pods manifest.Pods) {
	t.Helper()
	taint, tolerated := &corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}, !wantsGPU(pods.Template.Spec)
	for _, toleration := range pods.Template.Spec.Tolerations {
		tolerated = tolerated || toleration.Key == taint.Key && toleration.Operator == corev1.TolerationOpExists && toleration.Effect == taint.Effect
	}
	if !tolerated {
		t.Errorf("%s: %s does not tolerate %v", file, pods.Name, taint)
	}
	for _, container := range pods.Template.Spec.Containers {
		if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() {
			t.Errorf("%s: container %s of %s requests no CPU or no memory", file, container.Name, pods.Name)
		}
	}
}

func wantsGPU(pod corev1.PodSpec) bool {
	wants := len(pod.ResourceClaims) > 0
	for _, container := range pod.Containers {
		for name := range container.Resources.Limits {
			wants = wants || strings.HasPrefix(string(name), "nvidia.com/")
		}
	}
	return wants
}

// expectToServe looks at what takes time to load and to end. Who has no port is asked nothing: it
// only has to stay as long as its client.
func expectToServe(t *testing.T, file string, pods manifest.Pods, objects []runtime.Object) {
	t.Helper()
	if !wantsGPU(pods.Template.Spec) {
		return
	}
	if pods.Template.Spec.TerminationGracePeriodSeconds == nil {
		t.Errorf("%s: %s has no grace period for the answers that it has begun", file, pods.Name)
	}
	for _, container := range pods.Template.Spec.Containers {
		if container.Lifecycle == nil || container.Lifecycle.PreStop == nil {
			t.Errorf("%s: container %s of %s lacks a preStop hook", file, container.Name, pods.Name)
		}
		if len(container.Ports) > 0 && (container.StartupProbe == nil || container.ReadinessProbe == nil) {
			t.Errorf("%s: container %s of %s lacks a startup probe or a readiness probe", file, container.Name, pods.Name)
		}
	}
	for _, object := range objects {
		budget, ok := object.(*policyv1.PodDisruptionBudget)
		if ok && budget.Spec.Selector.MatchLabels["app"] == pods.Template.Labels["app"] {
			return
		}
	}
	t.Errorf("%s: %s has no PodDisruptionBudget", file, pods.Name)
}

func examples(t *testing.T) []string {
	t.Helper()
	files, err := manifest.Files("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func objectsOf(t *testing.T, file string) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := manifest.Read(content)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return objects
}
