// Package admission asks a ValidatingAdmissionPolicy what it says of an object, with what the API server does that
// with. It is only imported by tests and holds no expectations of its own.
package admission

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission"
	plugincel "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// Policy is a compiled ValidatingAdmissionPolicy.
type Policy struct {
	spec                              admissionv1.ValidatingAdmissionPolicySpec
	compiler                          *plugincel.CompositedCompiler
	conditions, expressions, messages plugincel.ConditionEvaluator
}

// Expression is one of a policy, in CEL.
type Expression struct {
	Name, Text string
	Returns    *cel.Type
}

func (e Expression) GetName() string          { return e.Name }
func (e Expression) GetExpression() string    { return e.Text }
func (e Expression) ReturnTypes() []*cel.Type { return []*cel.Type{e.Returns} }

// Find compiles the policy whose name has the prefix.
func Find(t testing.TB, manifests, prefix string) Policy {
	t.Helper()
	for document := range strings.SplitSeq(manifests, "\n---\n") {
		var found admissionv1.ValidatingAdmissionPolicy
		if err := yaml.Unmarshal([]byte(document), &found); err != nil || found.Kind != "ValidatingAdmissionPolicy" || !strings.HasPrefix(found.Name, prefix) {
			continue
		}
		if err := yaml.UnmarshalStrict([]byte(document), &found); err != nil {
			t.Fatal(err)
		}
		return compile(t, found.Spec)
	}
	t.Fatalf("there is no policy %s…", prefix)
	return Policy{}
}

// Compatibility is what a new expression may use at an API server of Kubernetes 1.34, the oldest that Mica runs on:
// what the version before knows, to which it may be rolled back.
var Compatibility = version.MajorMinor(1, 33)

func compile(t testing.TB, spec admissionv1.ValidatingAdmissionPolicySpec) Policy {
	t.Helper()
	compiler, err := plugincel.NewCompositedCompiler(environment.MustBaseEnvSet(Compatibility))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range spec.Variables {
		compiled := compiler.CompileAndStoreVariable(Expression{v.Name, v.Expression, cel.AnyType}, plugincel.OptionalVariableDeclarations{}, environment.NewExpressions)
		if compiled.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, compiled.Error)
		}
	}
	var conditions, expressions, messages []plugincel.ExpressionAccessor
	for _, c := range spec.MatchConditions {
		conditions = append(conditions, Expression{c.Name, c.Expression, cel.BoolType})
	}
	for _, v := range spec.Validations {
		expressions = append(expressions, Expression{Text: v.Expression, Returns: cel.BoolType})
		text := v.MessageExpression
		if text == "" {
			text = fmt.Sprintf("%q", v.Message)
		}
		messages = append(messages, Expression{Text: text, Returns: cel.StringType})
	}
	p := Policy{spec: spec, compiler: compiler}
	for evaluator, of := range map[*plugincel.ConditionEvaluator][]plugincel.ExpressionAccessor{&p.conditions: conditions, &p.expressions: expressions, &p.messages: messages} {
		*evaluator = compiler.CompileCondition(of, plugincel.OptionalVariableDeclarations{}, environment.NewExpressions)
		for _, err := range (*evaluator).CompilationErrors() {
			t.Fatal(err)
		}
	}
	return p
}

// Review is what a policy is asked; Old is nil for what is created, Object for what is deleted.
type Review struct {
	Kind string
	// Namespace is "default" where it is empty.
	Namespace   string
	Object, Old runtime.Object
	User        user.DefaultInfo
}

// Review reports whether the policy looks at an object, and why it refuses it.
func (p Policy) Review(t testing.TB, r Review) (matched bool, messages []string) {
	t.Helper()
	for _, condition := range p.evaluate(t, p.conditions, r) {
		if condition != true {
			return false, nil
		}
	}
	texts := p.evaluate(t, p.messages, r)
	for i, fine := range p.evaluate(t, p.expressions, r) {
		if fine != true {
			messages = append(messages, texts[i].(string))
		}
	}
	return true, messages
}

// evaluate fails the test where the API server could not decide: a runtime error, or more work than it
// allows. A message is only asked for where its expression fails, so that one of nothing is no error.
func (p Policy) evaluate(t testing.TB, evaluator plugincel.ConditionEvaluator, r Review) []any {
	t.Helper()
	kind := resourceapi.SchemeGroupVersion.WithKind(r.Kind)
	resource, _ := meta.UnsafeGuessKindToResource(kind)
	operation := admission.Create
	switch {
	case r.Object == nil:
		operation = admission.Delete
	case r.Old != nil:
		operation = admission.Update
	}
	attributes := admission.NewAttributesRecord(r.Object, r.Old, kind, cmp.Or(r.Namespace, "default"), "name", resource, "", operation, nil, false, &r.User)
	versioned := &admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind}
	if r.Object != nil {
		versioned.VersionedObject.Set(r.Object)
	}
	if r.Old != nil {
		versioned.VersionedOldObject.Set(r.Old)
	}
	request := plugincel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(kind))
	results, _, err := evaluator.ForInput(p.compiler.CreateContext(t.Context()), versioned, request, plugincel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	values := make([]any, len(results))
	for i, result := range results {
		switch {
		case result.Error == nil:
			values[i] = result.EvalResult.Value()
		case evaluator == p.messages:
			values[i] = result.Error.Error()
		default:
			t.Fatalf("%s: %v", result.ExpressionAccessor.GetExpression(), result.Error)
		}
	}
	return values
}
