//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
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

// TestGroupsThatAreRefused has what the API server refuses, and what only the controller can tell.
func TestGroupsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	provider := fields{"eks": fields{"nodegroup": "refused"}}
	for name, test := range map[string]struct {
		spec fields
		want string
	}{
		"min over max":           {fields{"provider": provider, "min": int64(3), "max": int64(2)}, "min is over max"},
		"no provider":            {fields{"provider": fields{}}, "give exactly one of eks and nodeSelector"},
		"two providers":          {fields{"provider": fields{"eks": fields{"nodegroup": "a"}, "nodeSelector": fields{"a": "b"}}}, "give exactly one of eks and nodeSelector"},
		"direct without EKS":     {fields{"provider": fields{"nodeSelector": fields{"a": "b"}}, "pairing": "direct"}, "give provider.eks"},
		"two names at AWS":       {fields{"provider": fields{"eks": fields{"nodegroup": "a"}, "autoScalingGroup": "b"}}, "autoScalingGroup is a self-managed group"},
		"no labels of its nodes": {fields{"provider": fields{"autoScalingGroup": "b"}}, "give exactly one of eks and nodeSelector"},
		"a time before":          {fields{"provider": provider, "scaleInAfter": "-5m"}, "scaleInAfter is negative"},
		"an unknown pairing":     {fields{"provider": provider, "pairing": "magic"}, `supported values: "placeholder", "direct", "observe"`},
		"a number without end":   {fields{"provider": provider, "pricePerHour": "1e-99999999"}, "without an exponent"},
		"memory without end":     {fields{"provider": provider, "template": fields{"gpus": fields{"count": int64(1), "productName": "x", "memory": "1e99999999"}}}, "without an exponent"},
		"processors without end": {fields{"provider": provider, "template": fields{"allocatable": fields{"cpu": "1E99999999"}}}, "without an exponent"},
		"GPUs without memory":    {fields{"provider": provider, "template": fields{"gpus": fields{"count": int64(1), "productName": "x"}}}, "give board"},
		"a field that is none":   {fields{"provider": provider, "maximum": int64(2)}, "unknown field"},
	} {
		_, err := s.dynamic(gpuNodeGroups).Create(t.Context(), groupWith("refused", test.spec), metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want one with %q", name, err, test.want)
		}
		if err == nil {
			must(t, s.dynamic(gpuNodeGroups).Delete(t.Context(), "refused", metav1.DeleteOptions{}), "delete the group")
		}
	}
}

func groupWith(name string, spec fields) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields{
		"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUNodeGroup",
		"metadata": fields{"name": name, "labels": fields{testLabel: ""}}, "spec": spec,
	}}
}
