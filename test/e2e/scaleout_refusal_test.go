//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	// By its schedule two devices are wanted or none, of which there are none yet.
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

// TestHeadroomsThatAreRefused has queries with which nothing could be kept.
func TestHeadroomsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	for name, test := range map[string]struct {
		spec fields
		want string
	}{
		"a query of nothing":     {fields{"query": fields{"promQL": " ", "maxDevices": int64(2)}}, "the query is empty"},
		"a query without end":    {fields{"query": fields{"promQL": "vector(1)"}}, "maxDevices"},
		"less than in any case":  {fields{"devices": int64(3), "query": fields{"promQL": "vector(1)", "maxDevices": int64(2)}}, "maxDevices is less than devices"},
		"a field that is none":   {fields{"query": fields{"promQL": "vector(1)", "maxDevices": int64(2), "season": "7d"}}, "unknown field"},
		"more than there can be": {fields{"query": fields{"promQL": "vector(1)", "maxDevices": int64(1001)}}, "1000"},
	} {
		test.spec["deviceClassName"] = s.driver
		_, err := s.dynamic(gpuHeadrooms).Create(t.Context(), &unstructured.Unstructured{Object: fields{
			"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUHeadroom", "metadata": fields{"name": "refused"}, "spec": test.spec,
		}}, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want one with %q", name, err, test.want)
		}
		if err == nil {
			must(t, s.dynamic(gpuHeadrooms).Delete(t.Context(), "refused", metav1.DeleteOptions{}), "delete the headroom")
		}
	}
}

// TestGroupsThatCannotGrow are accepted, and say why they do not grow.
func TestGroupsThatCannotGrow(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	for name, spec := range map[string]fields{
		"e2e-unknown-type": {"provider": fields{"eks": fields{"nodegroup": "e2e-unknown-type"}}, "instanceType": "p99.large"},
		"e2e-too-new":      {"provider": fields{"eks": fields{"nodegroup": "e2e-too-new"}}, "instanceType": "g7.xlarge"},
		"e2e-amd":          {"provider": fields{"eks": fields{"nodegroup": "e2e-amd"}}, "instanceType": "g4ad.xlarge"},
		"e2e-same-a":       {"provider": fields{"eks": fields{"nodegroup": "e2e-same"}}, "instanceType": "p5.48xlarge"},
		"e2e-same-b":       {"provider": fields{"nodeSelector": fields{nodegroupLabel: "e2e-same"}}, "instanceType": "p5.48xlarge"},
	} {
		_, err := s.dynamic(gpuNodeGroups).Create(t.Context(), groupWith(name, spec), metav1.CreateOptions{})
		must(t, err, "create group %s", name)
		t.Cleanup(func() {
			if err := s.dynamic(gpuNodeGroups).Delete(context.Background(), name, metav1.DeleteOptions{}); !apierrors.IsNotFound(err) && err != nil {
				t.Errorf("delete group %s: %v", name, err)
			}
		})
	}
	s.expectGroupCondition("e2e-unknown-type", "Ready", metav1.ConditionFalse, "spec.template.gpus")
	s.expectGroupCondition("e2e-too-new", "Ready", metav1.ConditionFalse, "memory")
	s.expectGroupCondition("e2e-amd", "Ready", metav1.ConditionFalse, "NVIDIA")
	s.expectGroupCondition("e2e-same-a", "Ready", metav1.ConditionFalse, "e2e-same-b")
	s.expectGroupCondition("e2e-same-b", "Ready", metav1.ConditionFalse, "e2e-same-a")
}

// TestPodsThatCannotBePlanned say why, and nothing grows for them.
func TestPodsThatCannotBePlanned(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "bad-input")
	unknown := s.claimFor(1)
	unknown.Devices.Requests[0].Exactly.DeviceClassName = "no-such-class"
	s.createTemplate("unknown", unknown)
	s.createTemplate("absent", s.claimFor(1, `device.attributes["gpu.nvidia.com"].noSuchAttribute == "x"`))
	for name, want := range map[string]string{"unknown": "no-such-class", "absent": "noSuchAttribute"} {
		s.createPods(name, 1, name)
		s.expectCondition(name+"-0", corev1.ConditionFalse, want)
	}
	s.expectNodes("bad-input", 0)
	if made := s.placeholdersMade("bad-input"); made != 0 {
		t.Errorf("%d placeholders were made", made)
	}
}

func groupWith(name string, spec fields) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: fields{
		"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUNodeGroup",
		"metadata": fields{"name": name, "labels": fields{testLabel: ""}}, "spec": spec,
	}}
}
