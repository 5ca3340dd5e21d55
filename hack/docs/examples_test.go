package docs

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
)

// An example has to run where it is copied to: on nodes with the usual taint, beside pods that have
// requests. What serves must also end and be drained without lost answers.
func TestExamplesRunOnTaintedNodes(t *testing.T) {
	single, err := filepath.Glob("../../examples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := filepath.Glob("../../examples/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pods, deployments := 0, 0
	for _, file := range append(single, serving...) {
		objects := knownObjects(t, file)
		for _, object := range objects {
			switch object := object.(type) {
			case *corev1.Pod:
				pods++
				expectToRun(t, file, object.Name, object.Spec)
			case *appsv1.Deployment:
				deployments++
				expectToRun(t, file, object.Name, object.Spec.Template.Spec)
				expectToServe(t, file, object, objects)
			}
		}
	}
	if pods < 12 || deployments < 5 {
		t.Errorf("found %d pods and %d Deployments", pods, deployments)
	}
}

// Nobody finds an example that the index does not have.
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

func expectToRun(t *testing.T, file, name string, pod corev1.PodSpec) {
	t.Helper()
	taint, tolerated := &corev1.Taint{Key: "nvidia.com/gpu", Value: "present", Effect: corev1.TaintEffectNoSchedule}, false
	for _, toleration := range pod.Tolerations {
		tolerated = tolerated || toleration.Key == taint.Key && toleration.Operator == corev1.TolerationOpExists && toleration.Effect == taint.Effect
	}
	if !tolerated {
		t.Errorf("%s: %s does not tolerate %v", file, name, taint)
	}
	for _, container := range pod.Containers {
		if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() {
			t.Errorf("%s: container %s of %s requests no CPU or no memory", file, container.Name, name)
		}
	}
}

func expectToServe(t *testing.T, file string, deployment *appsv1.Deployment, objects []runtime.Object) {
	t.Helper()
	pod, name := deployment.Spec.Template.Spec, deployment.Name
	if pod.TerminationGracePeriodSeconds == nil {
		t.Errorf("%s: %s has no grace period for the answers that it has begun", file, name)
	}
	for _, container := range pod.Containers {
		if container.StartupProbe == nil || container.ReadinessProbe == nil || container.Lifecycle == nil || container.Lifecycle.PreStop == nil {
			t.Errorf("%s: container %s of %s lacks a startup probe, a readiness probe or a preStop hook", file, container.Name, name)
		}
	}
	for _, object := range objects {
		budget, ok := object.(*policyv1.PodDisruptionBudget)
		if ok && budget.Spec.Selector.MatchLabels["app"] == deployment.Spec.Selector.MatchLabels["app"] {
			return
		}
	}
	t.Errorf("%s: %s has no PodDisruptionBudget", file, name)
}

// knownObjects are those of a file that are of Kubernetes' own kinds.
func knownObjects(t *testing.T, file string) []runtime.Object {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	reader := yaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content)))
	var objects []runtime.Object
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		object, _, err := decoder.Decode(document, nil, nil)
		switch {
		case runtime.IsNotRegisteredError(err):
		case err != nil:
			t.Errorf("%s: %v", file, err)
		default:
			objects = append(objects, object)
		}
	}
}
