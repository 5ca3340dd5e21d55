package helm_test

import (
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// The toleration is added to the others of a DaemonSet, and to no DaemonSet that tolerates the taint already.
func TestDaemonSetsOfTheNamespacesTolerateTheStartupTaint(t *testing.T) {
	policy := mutatingPolicy(t, "daemonsets-")
	ours := corev1.Toleration{Key: startupTaint, Operator: corev1.TolerationOpExists}
	gpus := corev1.Toleration{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct{ has, want []corev1.Toleration }{
		"none":                  {nil, []corev1.Toleration{ours}},
		"another":               {[]corev1.Toleration{gpus}, []corev1.Toleration{gpus, ours}},
		"all of another effect": {[]corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}, []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}, ours}},
		"a value of it":         {[]corev1.Toleration{{Key: startupTaint, Value: "x"}}, []corev1.Toleration{{Key: startupTaint, Value: "x"}, ours}},
		"the taint":             {[]corev1.Toleration{ours}, []corev1.Toleration{ours}},
		"all taints":            {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}},
	} {
		t.Run(name, func(t *testing.T) {
			set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-operator", Name: "driver"}}
			set.Spec.Template.Spec.Tolerations = test.has
			got := policy.mutate(t, set)
			if diff := cmp.Diff(test.want, got.Spec.Template.Spec.Tolerations); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
		})
	}
}

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
		var conditions []plugincel.ExpressionAccessor
		for _, c := range rendered.Spec.MatchConditions {
			conditions = append(conditions, expression{c.Name, c.Expression, cel.BoolType})
		}
		return mutation{
			conditions: compiler.CompileCondition(conditions, plugincel.OptionalVariableDeclarations{}, environment.NewExpressions),
			patcher: patch.NewJSONPatcher(compiler.CompileMutatingEvaluator(
				&patch.JSONPatchCondition{Expression: rendered.Spec.Mutations[0].JSONPatch.Expression},
				plugincel.OptionalVariableDeclarations{HasPatchTypes: true}, environment.NewExpressions)),
		}
	}
	t.Fatalf("the chart renders no policy %s…", prefix)
	return mutation{}
}

// mutate is what the API server does with a DaemonSet that is made.
func (m mutation) mutate(t *testing.T, set *appsv1.DaemonSet) *appsv1.DaemonSet {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kind, resource := appsv1.SchemeGroupVersion.WithKind("DaemonSet"), appsv1.SchemeGroupVersion.WithResource("daemonsets")
	interfaces := admission.NewObjectInterfacesFromScheme(scheme)
	attributes, err := admission.NewVersionedAttributes(
		admission.NewAttributesRecord(set, nil, kind, set.Namespace, set.Name, resource, "", admission.Create, &metav1.CreateOptions{}, false, &theController), kind, interfaces)
	if err != nil {
		t.Fatal(err)
	}
	request := plugincel.CreateAdmissionRequest(attributes.Attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(kind))
	results, _, err := m.conditions.ForInput(t.Context(), attributes, request, plugincel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range results {
		if result.Error != nil {
			t.Fatal(result.Error)
		}
		if result.EvalResult.Value() != true {
			return set
		}
	}
	patched, err := m.patcher.Patch(t.Context(), patch.Request{MatchedResource: resource, VersionedAttributes: attributes, ObjectInterfaces: interfaces}, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	return patched.(*appsv1.DaemonSet)
}
