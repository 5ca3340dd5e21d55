package main

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/fixture"
)

var (
	leaderWorkerSet = schema.GroupVersionKind{Group: "leaderworkerset.x-k8s.io", Version: "v1", Kind: "LeaderWorkerSet"}
	adapter         = schema.GroupVersionKind{Group: "nvidia.com", Version: "v1alpha1", Kind: "DynamoGraphDeploymentScalingAdapter"}
	plain           = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Plain"}
)

// foreign has workloads of kinds of other groups. The kind Plain has no scale.
func foreign(t *testing.T) client.WithWatch {
	t.Helper()
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	kinds := meta.NewDefaultRESTMapper([]schema.GroupVersion{leaderWorkerSet.GroupVersion(), adapter.GroupVersion(), plain.GroupVersion()})
	builder := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(kinds)
	for _, document := range documents(t, "testdata/foreign.yaml") {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(document), &object.Object); err != nil {
			t.Fatal(err)
		}
		object.SetNamespace("default")
		kinds.Add(object.GroupVersionKind(), meta.RESTScopeNamespace)
		builder.WithObjects(object)
	}
	return interceptor.NewClient(builder.Build(), interceptor.Funcs{
		SubResourceGet: func(ctx context.Context, c client.Client, _ string, object, into client.Object, _ ...client.SubResourceGetOption) error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(object), object.DeepCopyObject().(client.Object)); err != nil {
				return err
			}
			if object.GetObjectKind().GroupVersionKind() == plain {
				return apierrors.NewNotFound(schema.GroupResource{}, object.GetName())
			}
			return unstructured.SetNestedField(into.(*unstructured.Unstructured).Object, "app="+object.GetName(), "status", "selector")
		},
	})
}

func TestScaledObjectOfAnyKindWithAScale(t *testing.T) {
	for name, test := range map[string]struct {
		target, golden, note string
	}{
		"by its kind":           {"leaderworkerset/gang", "leaderworkerset", ""},
		"by kind and group":     {"LeaderWorkerSet.leaderworkerset.x-k8s.io/gang", "leaderworkerset", ""},
		"by its resource":       {"leaderworkersets/gang", "leaderworkerset", ""},
		"that has no template":  {"DynamoGraphDeploymentScalingAdapter.nvidia.com/decode", "adapter", "does not say what its pods ask for"},
		"a worker's claim only": {"leaderworkerset/workers", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			out, notes, err := printed(t, foreign(t), test.target, "--profile", "realtime", "--model", "llm", "--max", "4")
			if err != nil {
				t.Fatal(err)
			}
			if test.golden != "" {
				fixture.Golden(t, test.golden+".yaml", out)
			}
			if (notes == "") != (test.note == "") {
				t.Errorf("notes are %q, want %q", notes, test.note)
			}
		})
	}
}

func TestScaledObjectOfAKindThatCannotBeScaled(t *testing.T) {
	for name, test := range map[string]struct {
		target string
		want   []string
	}{
		"an unknown kind":     {"unicorn/a", []string{"the cluster has no kind unicorn", "kubectl api-resources"}},
		"an unknown group":    {"leaderworkerset.example.com/a", []string{"the cluster has no kind leaderworkerset.example.com"}},
		"a kind without":      {"plain/a", []string{"Plain.example.com/a has no scale subresource", "name the workload"}},
		"missing":             {"leaderworkerset/missing", []string{"missing does not exist in namespace", "create it"}},
		"pods without claims": {"leaderworkerset/web", []string{"ask for no devices"}},
		"no name":             {"leaderworkerset/", []string{`can have the name ""`}},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := printed(t, foreign(t), test.target, "--profile", "realtime", "--model", "llm")
			fixture.Sentence(t, err, test.want...)
			if out != "" {
				t.Errorf("printed all the same:\n%s", out)
			}
		})
	}
}
