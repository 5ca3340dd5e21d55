package explain

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestBadFiles(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main}]}\n"
	deployment := func(replicas string) string {
		return "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: " + replicas + ", selector: {}, template: {}}\n"
	}
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"no YAML":           {"a: [", []string{"document 1", "not YAML"}},
		"no kind":           {"metadata: {name: a}", []string{"document 1", "kind"}},
		"an unknown field":  {strings.Replace(pod, "containers", "container", 1), []string{"Pod a", "unknown field", "container"}},
		"a doubled key":     {pod + "spec: {}\n", []string{"spec"}},
		"an old version":    {"apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: c}\n", []string{"ResourceClaim c", "v1beta1", "use resource.k8s.io/v1"}},
		"no name":           {"apiVersion: v1\nkind: Pod\nmetadata: {}\n", []string{"metadata.name"}},
		"a node":            {strings.Replace(pod, "spec: {", "spec: {nodeName: n1, ", 1), []string{"pod a", "n1", "leave out"}},
		"twice":             {pod + "---\n" + pod, []string{"document 2", "two pods", "default/a"}},
		"fewer than none":   {deployment("-1"), []string{"Deployment d", "-1"}},
		"too many":          {deployment("10001"), []string{"Deployment d", "more than 10000 pods"}},
		"a status":          {"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {}\nstatus: {allocation: {}}\n", []string{"ResourceClaim c", "status"}},
		"too large":         {strings.Repeat("# x\n", maxBytes/4+1), []string{"too large", "16 MiB"}},
		"a list's bad item": {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a, nmae: b}}\n", []string{"item 1", "nmae"}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := NewManifest("default")
			if err != nil {
				t.Fatal(err)
			}
			fixture.Sentence(t, m.Read("standard input", strings.NewReader(tc.text)), append(tc.want, "standard input")...)
		})
	}
}

// The API server does the same for pods: without it, a pod with limits alone asks for nothing.
func TestLimitsAreRequests(t *testing.T) {
	m := manifest(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n"+
		"  - {name: main, resources: {limits: {nvidia.com/gpu: 2, cpu: 4}, requests: {cpu: 1}}}\n")
	requests := m.pods[0].Spec.Containers[0].Resources.Requests
	if gpus, cpu := requests["nvidia.com/gpu"], requests["cpu"]; gpus.Cmp(resource.MustParse("2")) != 0 || cpu.Cmp(resource.MustParse("1")) != 0 {
		t.Errorf("requests are %v", requests)
	}
}
