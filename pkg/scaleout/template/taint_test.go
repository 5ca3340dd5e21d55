package template

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// What an operator declares is a startup taint to all who ask: for a node's template, what is learned,
// and what placeholders tolerate.
func TestDeclaredStartupTaints(t *testing.T) {
	DeclareStartup([]string{"example.com/warming"}, []string{"boot.example.com/"})
	t.Cleanup(func() { DeclareStartup(nil, nil) })
	taints := []corev1.Taint{{Key: v1alpha1.TaintStartup}, {Key: "example.com/warming"}, {Key: "example.com/warming-up"}, {Key: "boot.example.com/x"}, {Key: "team"}}
	keys := func(taints []corev1.Taint) (keys []string) {
		for _, taint := range taints {
			keys = append(keys, taint.Key)
		}
		return keys
	}
	want := []string{"example.com/warming-up", "team"} // a key is whole, as at Cluster Autoscaler
	if got := keys(WithoutStartup(taints)); !slices.Equal(got, want) {
		t.Errorf("a node that has started has %q, want %q", got, want)
	}
	if got := keys(lasting(taints)); !slices.Equal(got, want) {
		t.Errorf("what is learned of a node has %q, want %q", got, want)
	}
	tolerated := map[string]bool{}
	for _, toleration := range StartupTolerations(taints) {
		tolerated[toleration.Key] = true
	}
	if !tolerated["example.com/warming"] || !tolerated["boot.example.com/x"] || tolerated["team"] {
		t.Errorf("placeholders tolerate %v", tolerated)
	}
}
