//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// TestExamplesOfScaleOut applies the examples that are not of one namespace, without a field
// that the API does not know.
func TestExamplesOfScaleOut(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	for _, example := range []struct {
		resource schema.GroupVersionResource
		file     string
		name     string
	}{
		{gpuNodeGroups, "node-group.yaml", "h100"},
		{gpuHeadrooms, "headroom.yaml", "warm-h100"},
		{gpuBudgets, "budget.yaml", "team-a"},
	} {
		content, err := os.ReadFile(filepath.Join(examplesDirectory, "scale-out", example.file))
		must(t, err, "read the example")
		object := &unstructured.Unstructured{}
		must(t, yaml.Unmarshal(content, &object.Object), "decode %s", example.file)
		_, err = s.dynamic(example.resource).Create(t.Context(), object, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		must(t, err, "apply %s", example.file)
		t.Cleanup(func() {
			if err := s.dynamic(example.resource).Delete(context.Background(), example.name, metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete %s: %v", example.name, err)
			}
		})
	}
	s.expectGroupCondition("h100", "Ready", metav1.ConditionTrue, "")
	s.expectGroup("h100", "template.source", "Catalogue")
	// By its schedule two devices are wanted or none, and there are none yet.
	s.expectStatus(gpuHeadrooms, "warm-h100", "free", int64(0))
}

func groupWith(name string, spec fields) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields{
		"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUNodeGroup",
		"metadata": fields{"name": name, "labels": fields{testLabel: ""}}, "spec": spec,
	}}
}
