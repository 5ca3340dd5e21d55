package helm_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
)

// reported is a policy with the entries of nodes, each with a message.
func reported(messages map[string]string) runtime.Object {
	nodes := []any{}
	for name, message := range messages {
		nodes = append(nodes, map[string]any{"name": name, "observedGeneration": int64(1), "message": message})
	}
	return &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"nodes": nodes}}}
}

func pluginOn(node string) user.DefaultInfo {
	return user.DefaultInfo{
		Name:  "system:serviceaccount:mica:mica-plugin",
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
}

func TestStatusPolicyDecides(t *testing.T) {
	policy := renderedPolicy(t, "gpupolicies-")
	before := reported(map[string]string{"a": "", "b": "too old"})
	for name, test := range map[string]struct {
		after map[string]string
		node  string
		want  string // part of the message; "" is accepted
	}{
		"a node's first entry":        {map[string]string{"a": "", "b": "too old", "c": ""}, "c", ""},
		"a node's own entry":          {map[string]string{"a": "mine", "b": "too old"}, "a", ""},
		"its own removed":             {map[string]string{"b": "too old"}, "a", ""},
		"another's removed":           {map[string]string{"a": ""}, "a", ""},
		"another's in place of a lie": {map[string]string{"a": "", "b": ""}, "a", "the Mica plugin on the node a may write only that node's entry"},
		"another's new":               {map[string]string{"a": "", "b": "too old", "c": ""}, "a", "may write only that node's entry"},
		"a token of no node":          {map[string]string{"a": "", "b": "too old"}, "", "not bound to a pod on a node"},
	} {
		t.Run(name, func(t *testing.T) {
			matched, messages := policy.review(t, review{kind: "GPUPolicy", object: reported(test.after), old: before, user: pluginOn(test.node)})
			refused := strings.Join(messages, "\n")
			if !matched || test.want == "" && refused != "" || !strings.Contains(refused, test.want) {
				t.Errorf("looked at: %t, refused: %q", matched, refused)
			}
		})
	}
	administrator := review{kind: "GPUPolicy", object: reported(nil), old: before, user: user.DefaultInfo{Name: "admin"}}
	if matched, _ := policy.review(t, administrator); matched {
		t.Error("others than the plugin are looked at")
	}
}

// A full status is within what the API server spends.
func TestStatusPolicyIsWithinTheBudget(t *testing.T) {
	messages := map[string]string{}
	for i := range 100 {
		messages[fmt.Sprintf("%s-%d", strings.Repeat("n", 240), i)] = strings.Repeat("m", 512)
	}
	object := reported(messages)
	matched, refused := renderedPolicy(t, "gpupolicies-").review(t, review{kind: "GPUPolicy", object: object, old: object, user: pluginOn("a")})
	if !matched || len(refused) > 0 {
		t.Errorf("looked at: %t, refused: %q", matched, refused)
	}
}
