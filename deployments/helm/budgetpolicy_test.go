package helm_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	scaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	aHundred     = "876000h"
)

// Pods that ask for devices in a namespace of the budget are kept from Cluster Autoscaler, and no others.
func TestPodsUnderABudgetAreKeptFromClusterAutoscaler(t *testing.T) {
	policy := mutatingPolicy(t, "budgets-")
	claims := []corev1.PodResourceClaim{{Name: "gpu"}}
	extended := func(name corev1.ResourceName) corev1.PodSpec {
		return corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{name: resource.MustParse("1")}}}}}
	}
	team, other := []any{"other", "team"}, []any{"other"}
	kept := map[string]string{scaleUpDelay: aHundred}
	for name, test := range map[string]struct {
		spec       corev1.PodSpec
		has, want  map[string]string
		namespaces []any
	}{
		"a claim":                       {corev1.PodSpec{ResourceClaims: claims}, nil, kept, team},
		"a budget of the whole cluster": {corev1.PodSpec{ResourceClaims: claims}, nil, kept, nil},
		"a budget of another namespace": {corev1.PodSpec{ResourceClaims: claims}, nil, nil, other},
		"other annotations":             {corev1.PodSpec{ResourceClaims: claims}, map[string]string{"a": "b"}, map[string]string{"a": "b", scaleUpDelay: aHundred}, team},
		"a delay of its own":            {corev1.PodSpec{ResourceClaims: claims}, map[string]string{scaleUpDelay: "1s"}, kept, team},
		"kept already":                  {corev1.PodSpec{ResourceClaims: claims}, kept, kept, team},
		"it has a node":                 {corev1.PodSpec{ResourceClaims: claims, NodeName: "n"}, nil, nil, team},
		"no devices":                    {extended(corev1.ResourceCPU), nil, nil, team},
		"the class's resource":          {extended("nvidia.com/gpu"), nil, kept, team},
		"any class's resource":          {extended("deviceclass.resource.kubernetes.io/mig.nvidia.com"), nil, kept, team},
		"of an init container":          {corev1.PodSpec{InitContainers: extended("nvidia.com/gpu").Containers, Containers: []corev1.Container{{}}}, nil, kept, team},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: test.has}, Spec: test.spec}
			spec := map[string]any{"gpus": int64(8)}
			if test.namespaces != nil {
				spec["namespaces"] = test.namespaces
			}
			budget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUBudget", "spec": spec}}
			got := policy.mutate(t, pod, corev1.SchemeGroupVersion.WithKind("Pod"), budget).(*corev1.Pod)
			if diff := cmp.Diff(test.want, got.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}
