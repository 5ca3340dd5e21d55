package main

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/mica-gpu/mica/test/fixture"
)

func askForClaim(t *testing.T, name string, failures interceptor.Funcs) (result, error) {
	t.Helper()
	reader := sliced(t).WithInterceptorFuncs(failures).Build()
	return explainer{defaults, reader, now}.claim(t.Context(), types.NamespacedName{Namespace: "research", Name: name})
}

// A claim has its devices, waits with a pod, or is not used.
func TestExplainOfClaims(t *testing.T) {
	for _, name := range []string{"shared", "kept", "big-gpus", "alone", "fits"} {
		t.Run(name, func(t *testing.T) {
			found, err := askForClaim(t, name, interceptor.Funcs{})
			if err != nil {
				t.Fatal(err)
			}
			goldenAnswer(t, "claim-"+name, found, 0, 110)
		})
	}
}

func TestArgumentsOfExplain(t *testing.T) {
	for line, want := range map[string]subject{
		"pod/a": {"a", false}, "pods a": {"a", false}, "a": {"a", false},
		"claim/a": {"a", true}, "resourceclaim a": {"a", true}, "claims/a": {"a", true},
		"pod": {}, "claim": {}, "claim/": {}, "/a": {}, "claim/a/b": {}, "a b": {}, "": {},
	} {
		got, err := explained(strings.Fields(line), false)
		if got != want || (err == nil) != (want != subject{}) {
			t.Errorf("%q: %+v, %v; want %+v", line, got, err, want)
		}
	}
}

func TestClaimsWithoutAnExplanation(t *testing.T) {
	for name, want := range map[string][]string{
		"missing": {"no claim missing", "namespace research", "kubectl get resourceclaims", "-n"},
		"big-gpu": {"no claim big-gpu ", "did you mean big-gpus", "-n"},
		"pinned":  {"claim research/pinned", "pod pinned is on node n1", "spec.nodeName", "nodeSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := askForClaim(t, name, interceptor.Funcs{})
			fixture.Sentence(t, err, want...)
		})
	}
}

// A user with few rights gets the facts of the claim itself.
func TestExplainOfAClaimWithFewRights(t *testing.T) {
	refusing := interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", nil)
	}}
	found, err := askForClaim(t, "shared", refusing)
	if err != nil {
		t.Fatal(err)
	}
	goldenAnswer(t, "claim-hidden", found, 0)
	notes := strings.Join(found.notes, "\n")
	for _, want := range []string{"you may not list the pods of namespace research", "you may not list ResourceSlices", "ask for the ClusterRole"} {
		if !strings.Contains(notes, want) {
			t.Errorf("the notes do not say %q:\n%s", want, notes)
		}
	}
	_, err = askForClaim(t, "alone", refusing)
	fixture.Sentence(t, err, "the right to list")
	pods := interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, o ...client.ListOption) error {
		if _, is := list.(*corev1.NodeList); is {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "nodes"}, "", nil)
		}
		return c.List(ctx, list, o...)
	}}
	_, err = askForClaim(t, "big-gpus", pods)
	fixture.Sentence(t, err, "you may not list", "pod research/big has no condition mica.gpu/ScaleUp yet")
}
