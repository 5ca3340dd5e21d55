package crd

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// served is the document of an API server with the chart's CustomResourceDefinitions, after a change.
func served(t *testing.T, change func(kind string, schema *apiextensionsv1.JSONSchemaProps) bool) []byte {
	t.Helper()
	files, err := filepath.Glob("../../deployments/helm/mica/crds/*.yaml")
	if err != nil || len(files) != len(kinds) {
		t.Fatalf("the chart has the CustomResourceDefinitions %v, %v; want %d", files, err, len(kinds))
	}
	schemas := map[string]any{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(content, &definition); err != nil {
			t.Fatal(err)
		}
		kind := definition.Spec.Names.Kind
		of := definition.Spec.Versions[0].Schema.OpenAPIV3Schema
		if !change(kind, of) {
			continue
		}
		encoded, err := json.Marshal(of)
		if err != nil {
			t.Fatal(err)
		}
		var schema map[string]any
		if err := json.Unmarshal(encoded, &schema); err != nil {
			t.Fatal(err)
		}
		schema["x-kubernetes-group-version-kind"] = []any{map[string]any{"group": "mica.gpu", "version": "v1alpha1", "kind": kind}}
		schemas["gpu.mica.v1alpha1."+kind] = schema
	}
	document, err := json.Marshal(map[string]any{"components": map[string]any{"schemas": schemas}})
	if err != nil {
		t.Fatal(err)
	}
	return document
}

func TestWhatAnOlderChartLacks(t *testing.T) {
	without := func(of string, path ...string) func(string, *apiextensionsv1.JSONSchemaProps) bool {
		return func(kind string, schema *apiextensionsv1.JSONSchemaProps) bool {
			if kind != of {
				return true
			}
			for _, name := range path[:len(path)-1] {
				inner := schema.Properties[name]
				if inner.Items != nil {
					inner = *inner.Items.Schema
				}
				schema = &inner
			}
			delete(schema.Properties, path[len(path)-1])
			return true
		}
	}
	for name, test := range map[string]struct {
		change func(string, *apiextensionsv1.JSONSchemaProps) bool
		want   []string
	}{
		"this version": {func(string, *apiextensionsv1.JSONSchemaProps) bool { return true }, nil},
		"a field":      {without("GPUNodeGroup", "spec", "scaleInAfter"), []string{"GPUNodeGroup.spec.scaleInAfter"}},
		"in a list":    {without("GPUHeadroom", "spec", "schedule", "timeZone"), []string{"GPUHeadroom.spec.schedule.timeZone"}},
		"a kind":       {func(kind string, _ *apiextensionsv1.JSONSchemaProps) bool { return kind != "GPUBudget" }, []string{"GPUBudget"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Lacking(served(t, test.change))
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("lacking are %v, %v; want %v", got, err, test.want)
			}
		})
	}
	if _, err := Lacking([]byte("<html>")); err == nil {
		t.Error("what is no JSON is no error")
	}
}

// The result stays while the API server does not answer, and changes when the definitions are upgraded.
func TestAWatcherFollowsTheDefinitions(t *testing.T) {
	var answer []byte
	var failure error
	w := &Watcher{Read: func(context.Context) ([]byte, error) { return answer, failure }}
	answer = served(t, func(kind string, _ *apiextensionsv1.JSONSchemaProps) bool { return kind != "GPUBudget" })
	w.once(t.Context())
	if got := w.Sentence(); !strings.Contains(got, "drops GPUBudget; upgrade them: kubectl apply") {
		t.Errorf("it says %q", got)
	}
	failure = errors.New("no connection")
	w.once(t.Context())
	if w.Sentence() == "" {
		t.Error("what was known is forgotten")
	}
	answer, failure = served(t, func(string, *apiextensionsv1.JSONSchemaProps) bool { return true }), nil
	w.once(t.Context())
	if got := w.Sentence(); got != "" {
		t.Errorf("it still says %q", got)
	}
}
