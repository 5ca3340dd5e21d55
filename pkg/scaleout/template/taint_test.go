package template

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// An operator's startup taints count for templates and for what placeholders tolerate.
func TestStartupTaintsOfTheOperator(t *testing.T) {
	startup := StartupTaints{Keys: []string{"example.com/warming"}, Prefixes: []string{"boot.example.com/"}}
	taints := []corev1.Taint{{Key: v1alpha1.TaintStartup}, {Key: "example.com/warming"}, {Key: "example.com/warming-up"}, {Key: "boot.example.com/x"}, {Key: "team"}}
	keys := func(taints []corev1.Taint) (keys []string) {
		for _, taint := range taints {
			keys = append(keys, taint.Key)
		}
		return keys
	}
	want := []string{"example.com/warming-up", "team"} // a key is whole, as at Cluster Autoscaler
	if got := keys(startup.Without(taints)); !slices.Equal(got, want) {
		t.Errorf("a node that has started has %q, want %q", got, want)
	}
	if got := keys(startup.lasting(taints)); !slices.Equal(got, want) {
		t.Errorf("what is learned of a node has %q, want %q", got, want)
	}
	tolerated := map[string]bool{}
	for _, toleration := range startup.Tolerations(taints) {
		tolerated[toleration.Key] = true
	}
	if !tolerated["example.com/warming"] || !tolerated["boot.example.com/x"] || tolerated["team"] {
		t.Errorf("placeholders tolerate %v", tolerated)
	}
}
