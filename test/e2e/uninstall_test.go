//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/mica-gpu/mica/test/manifest"
)

// TestUninstall does what the page of uninstalling says, after claims of each shape were used, and looks for
// what is left: objects, and files where there is access to the node. Nothing can be tested after it:
// hack/e2e.sh runs it last.
func TestUninstall(t *testing.T) {
	comesLast(t, "takes Mica away from all others")
	s, _ := newShareScenario(t, 3)
	for template, spec := range map[string]string{"one": s.driver, "partition": partitionClass, "slice": timeSliceClass, "client": mpsClass} {
		s.createTemplate(template, s.sharesFor(spec, 1, nil))
	}
	s.hold("one", "partition", "slice", "client")
	eventually(t, goneTimeout, "the pods are gone", s.deletePods)
	eventually(t, startTimeout, "the claims are gone", s.expectNoClaims)
	eventually(t, startTimeout, "claims have left neither records nor CDI files", s.expectNodeMatchesClaims)
	s.expectUnshared()
	var files []string
	if s.local() {
		m := s.onNode(t)
		files = []string{
			filepath.Join(m.open(t, filepath.Join(s.pluginsDirectory, s.driver, "claims")), "*"),
			filepath.Join(m.open(t, s.cdiRoot), "mica-*"),
			filepath.Join(m.open(t, filepath.Join(s.mpsRoot, "daemons")), "*"),
		}
	}
	objects := s.installed()
	if len(objects) < 30 {
		t.Errorf("the release has %d objects, too few to be the chart's", len(objects))
	}

	waiting := s.waitUnderABudget()
	under.uninstalled = true
	s.helm("uninstall", "mica")
	for _, object := range objects {
		eventually(t, goneTimeout, object.String()+" is gone", func(ctx context.Context) error { return s.expectAbsent(ctx, object) })
	}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	for _, resource := range []string{"gpupolicies", "gpunodes", "gpunodegroups", "gpuheadrooms", "gpubudgets"} {
		crd := installedObject{crds, "", resource + ".mica.gpu"}
		if err := s.expectAbsent(t.Context(), crd); err == nil {
			t.Errorf("helm uninstall has removed %s, and with it what users made", crd)
		}
		must(t, s.dynamicClient().Resource(crds).Delete(t.Context(), crd.name, metav1.DeleteOptions{}), "delete %s", crd)
		eventually(t, goneTimeout, crd.String()+" is gone: none of its objects waits for a controller", func(ctx context.Context) error { return s.expectAbsent(ctx, crd) })
	}
	for _, pattern := range files {
		left, err := filepath.Glob(pattern)
		must(t, err, "look for files")
		if len(left) > 0 {
			t.Errorf("claims that are gone have left %v", left)
		}
	}
	must(t, s.expectNoInstances(t.Context()), "look for partitions")
	s.expectDelayEnds(waiting)
}

// waitUnderABudget has a pod wait for a node that its budget does not allow, and gives its name. The group and the budget
// go with their CustomResourceDefinitions.
func (s *scenario) waitUnderABudget() string {
	s.Helper()
	for resource, object := range map[schema.GroupVersionResource]*unstructured.Unstructured{
		gpuNodeGroups: groupWith("e2e-uninstall", fields{"provider": fields{"eks": fields{"nodegroup": "e2e-uninstall"}}, "instanceType": l4, "pairing": placeholder}),
		gpuBudgets: {Object: fields{
			"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUBudget", "metadata": fields{"name": "e2e-uninstall"},
			"spec": fields{"namespaces": []any{s.namespace}, "gpus": int64(0)},
		}},
	} {
		_, err := s.dynamicClient().Resource(resource).Create(s.Context(), object, metav1.CreateOptions{})
		must(s, err, "create %s %s", resource.Resource, object.GetName())
	}
	s.createTemplate("waits", s.claimFor(1, productIs("NVIDIA L4")))
	s.createPod(s.podFromTemplate("waits", "waits"))
	s.expectDelay("waits", func(pod *corev1.Pod) bool {
		delay, err := time.ParseDuration(pod.Annotations[scaleUpDelay])
		_, marked := pod.Annotations[delayBefore]
		return err == nil && marked && delay > 0
	})
	return "waits"
}

// expectDelayEnds expects that Cluster Autoscaler has the pod within the hour, though the budget was not deleted first.
func (s *scenario) expectDelayEnds(name string) {
	s.Helper()
	pod, err := s.pod(s.Context(), name)
	must(s, err, "read pod %s", name)
	text, kept := pod.Annotations[scaleUpDelay]
	if !kept {
		return // the controller found before it went that no group grows for the pod
	}
	delay, err := time.ParseDuration(text)
	if left := delay - time.Since(pod.CreationTimestamp.Time); err != nil || left > time.Hour {
		s.Errorf("pod %s is kept from Cluster Autoscaler for %s without Mica: %v, %v", name, left, pod.Annotations, err)
	}
}

// installedObject is one that the chart has made.
type installedObject struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

func (o installedObject) String() string {
	return o.resource.Resource + " " + o.namespace + "/" + o.name
}

// installed are the objects of the release.
func (s *scenario) installed() (all []installedObject) {
	s.Helper()
	command := exec.Command(os.Getenv("MICA_HELM"), "get", "manifest", "mica", "--namespace", s.plugin.namespace)
	output, err := command.Output()
	must(s, err, "ask helm for the release")
	objects, err := manifest.Read(bytes.TrimPrefix(output, []byte("---\n")))
	must(s, err, "read the release")
	mapper := s.applier().mapper
	for _, object := range objects {
		loose, err := loosen(object)
		must(s, err, "read the release")
		kind := loose.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		must(s, err, "look for the kind %s", kind)
		found := installedObject{mapping.Resource, "", loose.GetName()}
		if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
			found.namespace = loose.GetNamespace()
		}
		all = append(all, found)
	}
	return all
}

func (s *scenario) expectAbsent(ctx context.Context, o installedObject) error {
	var resource dynamic.ResourceInterface = s.dynamicClient().Resource(o.resource)
	if o.namespace != "" {
		resource = s.dynamicClient().Resource(o.resource).Namespace(o.namespace)
	}
	object, err := resource.Get(ctx, o.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("it is there, with the finalizers %s", strings.Join(object.GetFinalizers(), ", "))
}
