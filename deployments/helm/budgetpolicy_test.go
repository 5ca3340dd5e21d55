package helm_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	scaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	delayBefore  = "mica.gpu/scale-up-delay-before"
	aHundred     = "876000h"
)

func keptFor(delay, before string) map[string]string {
	return map[string]string{scaleUpDelay: delay, delayBefore: before}
}

func asksFor(resources ...corev1.ResourceName) corev1.PodSpec {
	requests := corev1.ResourceList{}
	for _, name := range resources {
		requests[name] = resource.MustParse("1")
	}
	return corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests}}}}
}

func underBudget(namespaces ...any) *unstructured.Unstructured {
	spec := map[string]any{"gpus": int64(8)}
	if len(namespaces) > 0 {
		spec["namespaces"] = namespaces
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUBudget", "spec": spec}}
}

// Pods that may ask for Mica's devices in a namespace of the budget are kept from Cluster Autoscaler, and no others.
func TestPodsUnderABudgetAreKeptFromClusterAutoscaler(t *testing.T) {
	policy := mutatingPolicy(t, "budgets-")
	claims := []corev1.PodResourceClaim{{Name: "gpu"}}
	team, other := []any{"other", "team"}, []any{"other"}
	kept := keptFor("10m", "")
	for name, test := range map[string]struct {
		spec       corev1.PodSpec
		has, want  map[string]string
		namespaces []any
	}{
		"a claim":                       {corev1.PodSpec{ResourceClaims: claims}, nil, kept, team},
		"a budget of the whole cluster": {corev1.PodSpec{ResourceClaims: claims}, nil, kept, nil},
		"a budget of another namespace": {corev1.PodSpec{ResourceClaims: claims}, nil, nil, other},
		"other annotations": {corev1.PodSpec{ResourceClaims: claims}, map[string]string{"a": "b"},
			map[string]string{"a": "b", scaleUpDelay: "10m", delayBefore: ""}, team},
		"a delay of its own":      {corev1.PodSpec{ResourceClaims: claims}, map[string]string{scaleUpDelay: "1s"}, map[string]string{scaleUpDelay: "1s"}, team},
		"a delay that is none":    {corev1.PodSpec{ResourceClaims: claims}, map[string]string{scaleUpDelay: "soon"}, map[string]string{scaleUpDelay: "soon"}, team},
		"a forged mark":           {corev1.PodSpec{ResourceClaims: claims}, map[string]string{delayBefore: "0s"}, kept, team},
		"kept already":            {corev1.PodSpec{ResourceClaims: claims}, kept, kept, team},
		"it has a node":           {corev1.PodSpec{ResourceClaims: claims, NodeName: "n"}, nil, nil, team},
		"no devices":              {asksFor(corev1.ResourceCPU), nil, nil, team},
		"the class's resource":    {asksFor("nvidia.com/gpu"), nil, kept, team},
		"any class's resource":    {asksFor("deviceclass.resource.kubernetes.io/mig.nvidia.com"), nil, kept, team},
		"another driver's class":  {asksFor("deviceclass.resource.kubernetes.io/neuron.amazonaws.com"), nil, nil, team},
		"another driver's device": {asksFor("aws.amazon.com/neuron"), nil, nil, team},
		"of an init container":    {corev1.PodSpec{InitContainers: asksFor("nvidia.com/gpu").Containers, Containers: []corev1.Container{{}}}, nil, kept, team},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: test.has}, Spec: test.spec}
			got := policy.mutate(t, pod, corev1.SchemeGroupVersion.WithKind("Pod"), underBudget(test.namespaces...)).(*corev1.Pod)
			if diff := cmp.Diff(test.want, got.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}

// The owner of a pod does not take away what keeps it from Cluster Autoscaler, and may change all else.
func TestWhatKeepsPodsFromClusterAutoscalerStays(t *testing.T) {
	policy := mutatingPolicy(t, "budgets-")
	for name, test := range map[string]struct {
		before, after, want map[string]string
	}{
		"all gone":                   {keptFor("3h", "2m"), nil, keptFor("3h", "2m")},
		"delay gone":                 {keptFor("3h", ""), map[string]string{delayBefore: ""}, keptFor("3h", "")},
		"delay shortened":            {keptFor("3h", ""), keptFor("1s", ""), keptFor("3h", "")},
		"mark forged":                {keptFor("3h", "2m"), keptFor("3h", "0s"), keptFor("3h", "2m")},
		"the delay was gone before":  {map[string]string{delayBefore: ""}, keptFor("1s", ""), keptFor("10m", "")},
		"another annotation":         {keptFor("3h", ""), map[string]string{"a": "b", scaleUpDelay: "3h", delayBefore: ""}, map[string]string{"a": "b", scaleUpDelay: "3h", delayBefore: ""}},
		"it was not kept":            {nil, map[string]string{"a": "b"}, map[string]string{"a": "b"}},
		"an own delay, changed":      {map[string]string{scaleUpDelay: "1m"}, map[string]string{scaleUpDelay: "2m"}, map[string]string{scaleUpDelay: "2m"}},
		"an own delay, taken away":   {map[string]string{scaleUpDelay: "1m"}, nil, nil},
		"a mark that is set by hand": {nil, map[string]string{delayBefore: "0s"}, map[string]string{delayBefore: "0s"}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := func(annotations map[string]string) *corev1.Pod {
				return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "p", Annotations: annotations}, Spec: asksFor("nvidia.com/gpu")}
			}
			got := policy.mutateUpdate(t, pod(test.after), pod(test.before), corev1.SchemeGroupVersion.WithKind("Pod"), underBudget()).(*corev1.Pod)
			if diff := cmp.Diff(test.want, got.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
		})
	}
}

// With failClosed, pods are kept for ever from when they are made, and the controller is told so.
func TestBudgetsFailClosed(t *testing.T) {
	rendered := render(t, "--namespace", "mica", "--set", "controller.budgets.failClosed=true")
	if count := strings.Count(rendered, `"876000h" : oldObject`); count != 1 || strings.Contains(rendered, `"10m" : oldObject`) {
		t.Errorf("pods that are made are kept for 876000h in %d places, want 1", count)
	}
	if !strings.Contains(rendered, "--budgets-fail-closed") {
		t.Error("the controller has no argument --budgets-fail-closed")
	}
}
