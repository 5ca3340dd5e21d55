package explain

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/kubectl/terminal"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

func manifest(t *testing.T, texts ...string) *Manifest {
	t.Helper()
	m, err := NewManifest("default")
	if err != nil {
		t.Fatal(err)
	}
	for i, text := range texts {
		if err := m.Read(fmt.Sprint("text ", i), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func file(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// chart has the DeviceClasses and GPUPolicies that Mica's chart installs by default.
func chart(t *testing.T) string {
	t.Helper()
	var kept []string
	for _, document := range strings.Split(file(t, "../../../deployments/helm/testdata/defaults.golden.yaml"), "\n---\n") {
		if strings.Contains(document, "\nkind: DeviceClass\n") || strings.Contains(document, "\nkind: GPUPolicy\n") {
			kept = append(kept, document)
		}
	}
	return strings.Join(kept, "\n---\n")
}

func planFor(t *testing.T, cluster Cluster) *Plan {
	t.Helper()
	v, err := view.Read(t.Context(), cluster, view.Options{Driver: slice.DefaultDriver, Now: time.Date(2026, 10, 1, 12, 0, 0, 0, time.UTC)})
	if err != nil {
		t.Fatal(err)
	}
	held := len(v.Held)
	plan, err := PlanFor(t.Context(), v.Snapshot, cluster.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if len(v.Held) != held {
		t.Error("the snapshot was changed")
	}
	return plan
}

// screens are the widths at which outputs are compared.
var screens = []int{0, 100}

func TestPlansForManifests(t *testing.T) {
	m := manifest(t, chart(t), file(t, "testdata/pods.yaml"))
	plan := planFor(t, Cluster{Manifest: m, Templates: []string{"p5.48xlarge", "g6.12xlarge"}})
	var all bytes.Buffer
	for _, width := range screens {
		fmt.Fprintf(&all, "--- %d\n", width)
		if err := plan.Write(&all, terminal.Screen{Width: width}); err != nil {
			t.Fatal(err)
		}
	}
	all.WriteString("--- yaml\n")
	plan.Pods = plan.Pods[:1]
	if err := terminal.YAML.Encode(&all, plan); err != nil {
		t.Fatal(err)
	}
	fixture.Golden(t, "plan.golden.txt", all.String())
}

func TestTemplates(t *testing.T) {
	m := manifest(t, chart(t))
	var policies v1alpha1.GPUPolicyList
	if err := (Cluster{Manifest: m}).List(t.Context(), &policies); err != nil {
		t.Fatal(err)
	}
	for _, instanceType := range []string{"p5.48xlarge", "g6.12xlarge"} {
		predicted, err := Predict(slice.DefaultDriver, instanceType, policies.Items)
		if err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		for _, width := range screens {
			fmt.Fprintf(&all, "--- %d\n", width)
			if err := predicted.Write(&all, terminal.Screen{Width: width}); err != nil {
				t.Fatal(err)
			}
		}
		fixture.Golden(t, instanceType+".golden.txt", all.String())
		for _, s := range predicted.Slices {
			if s.Kind != "ResourceSlice" || *s.Spec.NodeName != instanceType {
				t.Errorf("slice %s is a %s of node %s", s.Name, s.Kind, *s.Spec.NodeName)
			}
			for _, d := range s.Spec.Devices {
				if _, has := d.Attributes["uuid"]; has {
					t.Errorf("%s has an invented UUID", d.Name)
				}
			}
		}
	}
}

// An object of the files replaces one of the cluster, unless it is a claim, which keeps its devices.
func TestFilesReplaceObjectsOfTheCluster(t *testing.T) {
	claim := fixture.Claim("c", fixture.Result("gpu", "gpu-0"))
	claim.Namespace = "default"
	class := &resourceapi.DeviceClass{}
	class.Name = "c"
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = "default", "p"
	m := manifest(t, `apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: c}
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: c}
spec: {extendedResourceName: nvidia.com/gpu}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
`)
	c := Cluster{Base: fake.NewClientBuilder().WithScheme(m.scheme).WithObjects(claim, class, pod).Build(), Manifest: m}
	var claims resourceapi.ResourceClaimList
	var classes resourceapi.DeviceClassList
	if err := errors.Join(c.List(t.Context(), &claims), c.List(t.Context(), &classes)); err != nil {
		t.Fatal(err)
	}
	if len(claims.Items) != 1 || claims.Items[0].Status.Allocation == nil {
		t.Errorf("claims are %v", claims.Items)
	}
	if len(classes.Items) != 1 || classes.Items[0].Spec.ExtendedResourceName == nil {
		t.Errorf("classes are %v", classes.Items)
	}
	fixture.Sentence(t, c.List(t.Context(), &corev1.PodList{}), "pod default/p exists", "kubectl gpu explain pod/p")
	c.Templates = []string{"g5.xlarge"}
	var pods corev1.PodList
	if err := c.List(t.Context(), &pods); err != nil || len(pods.Items) != 1 {
		t.Errorf("with a template, pods are %v, %v", pods.Items, err)
	}
}

// The most pods that are read are planned while a user waits.
func TestManyPodsArePlanned(t *testing.T) {
	text := strings.Replace(file(t, "testdata/pods.yaml"), "replicas: 3", "replicas: 9990", 1)
	plan := planFor(t, Cluster{Manifest: manifest(t, chart(t), text), Templates: []string{"g6.12xlarge"}})
	if len(plan.Pods) < 9990 {
		t.Errorf("%d pods are planned", len(plan.Pods))
	}
}
