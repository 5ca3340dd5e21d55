package helm_test

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiadmission "k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/mica-gpu/mica/test/admission"
)

// mutation is a compiled MutatingAdmissionPolicy.
type mutation struct {
	conditions plugincel.ConditionEvaluator
	patcher    patch.Patcher
}

func mutatingPolicy(t *testing.T, prefix string) mutation {
	t.Helper()
	for _, document := range strings.Split(render(t, "--namespace", "mica", "--set", "controller.startupTaint.tolerateIn={gpu-operator}"), "\n---\n") {
		var rendered admissionv1.MutatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(document), &rendered); err != nil || rendered.Kind != "MutatingAdmissionPolicy" || !strings.HasPrefix(rendered.Name, prefix) {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &rendered); err != nil {
			t.Fatal(err)
		}
		compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
		if err != nil {
			t.Fatal(err)
		}
		params := rendered.Spec.ParamKind != nil
		var conditions []plugincel.ExpressionAccessor
		for _, c := range rendered.Spec.MatchConditions {
			conditions = append(conditions, admission.Expression{Name: c.Name, Text: c.Expression, Returns: cel.BoolType})
		}
		return mutation{
			conditions: compiler.CompileCondition(conditions, plugincel.OptionalVariableDeclarations{HasParams: params}, environment.NewExpressions),
			patcher: patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(
				&patch.JSONPatchCondition{Expression: rendered.Spec.Mutations[0].JSONPatch.Expression},
				plugincel.OptionalVariableDeclarations{HasParams: params, HasPatchTypes: true}, environment.NewExpressions)),
		}
	}
	t.Fatalf("the chart renders no policy %s…", prefix)
	return mutation{}
}

// mutate is what the API server does with an object that is made, for one object of the policy's parameters.
func (m mutation) mutate(t *testing.T, object runtime.Object, kind schema.GroupVersionKind, params runtime.Object) runtime.Object {
	t.Helper()
	return m.mutateUpdate(t, object, nil, kind, params)
}

// mutateUpdate is what it does with one that was another before; nil: it is made.
func (m mutation) mutateUpdate(t *testing.T, object, old runtime.Object, kind schema.GroupVersionKind, params runtime.Object) runtime.Object {
	t.Helper()
	operation, options := apiadmission.Create, runtime.Object(&metav1.CreateOptions{})
	if old != nil {
		operation, options = apiadmission.Update, &metav1.UpdateOptions{}
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{appsv1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	named, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	interfaces := apiadmission.NewObjectInterfacesFromScheme(scheme)
	attributes, err := apiadmission.NewVersionedAttributes(
		apiadmission.NewAttributesRecord(object, old, kind, named.GetNamespace(), named.GetName(), resource, "", operation, options, false, &theController), kind, interfaces)
	if err != nil {
		t.Fatal(err)
	}
	bindings := plugincel.OptionalVariableBindings{VersionedParams: params}
	request := plugincel.CreateAdmissionRequest(attributes.Attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(kind))
	results, _, err := m.conditions.ForInput(t.Context(), attributes, request, bindings, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		if result.Error != nil {
			t.Fatal(result.Error)
		}
		if result.EvalResult.Value() != true {
			return object
		}
	}
	patched, err := m.patcher.Patch(t.Context(), patch.Request{
		MatchedResource: resource, VersionedAttributes: attributes, ObjectInterfaces: interfaces, OptionalVariables: bindings,
	}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	return patched
}
