package simulate

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/mica-gpu/mica/test/fixture"
)

func TestBadFiles(t *testing.T) {
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main}]}\n"
	for name, tc := range map[string]struct {
		text string
		want []string
	}{
		"nothing":           {"# nothing\n---\n", []string{"no pod", "Deployments"}},
		"no pod":            {"apiVersion: v1\nkind: Service\nmetadata: {name: s}\n", []string{"no pod", "Service/s"}},
		"no YAML":           {"a: [", []string{"document 1", "no YAML"}},
		"no kind":           {"metadata: {name: a}", []string{"document 1", "kind"}},
		"an unknown field":  {strings.Replace(pod, "containers", "container", 1), []string{"Pod a", "unknown field", "container"}},
		"a doubled key":     {pod + "spec: {}\n", []string{"Pod a", "spec"}},
		"an old version":    {"apiVersion: resource.k8s.io/v1beta1\nkind: ResourceClaim\nmetadata: {name: c}\n", []string{"ResourceClaim c", "v1beta1", "write resource.k8s.io/v1"}},
		"no name":           {"apiVersion: v1\nkind: Pod\nmetadata: {}\n", []string{"metadata.name"}},
		"a node":            {strings.Replace(pod, "spec: {", "spec: {nodeName: n1, ", 1), []string{"pod a", "n1", "leave out"}},
		"twice":             {pod + "---\n" + pod, []string{"document 2", "two pods", "default/a"}},
		"fewer than none":   {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: -1, selector: {}, template: {}}\n", []string{"Deployment d", "-1"}},
		"too many":          {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\nspec: {replicas: 10001, selector: {}, template: {}}\n", []string{"Deployment d", "more than 10000 pods"}},
		"a status":          {"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {}\nstatus: {allocation: {}}\n", []string{"ResourceClaim c", "status"}},
		"too large":         {strings.Repeat("# x\n", MaxBytes/4+1), []string{"too large", "16 MiB"}},
		"a list's bad item": {"apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: a, nmae: b}}\n", []string{"item 1", "nmae"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := NewReader("default")
			if err != nil {
				t.Fatal(err)
			}
			if err = r.Read("pods.yaml", strings.NewReader(tc.text)); err == nil {
				_, err = r.Manifest()
			}
			fixture.Sentence(t, err, tc.want...)
		})
	}
}

func TestPodsOfWorkloads(t *testing.T) {
	m := manifest(t, `
apiVersion: v1
kind: List
items:
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: other}, spec: {template: {}, selector: {}}}
- {apiVersion: apps/v1, kind: ReplicaSet, metadata: {name: r}, spec: {replicas: 2, template: {}, selector: {}}}
- {apiVersion: batch/v1, kind: Job, metadata: {name: j}, spec: {parallelism: 4, completions: 3, template: {}}}
- {apiVersion: batch/v1, kind: CronJob, metadata: {name: c}, spec: {schedule: "", jobTemplate: {spec: {template: {}}}}}
- {apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {containers: [{name: m, resources: {limits: {cpu: 2, nvidia.com/gpu: 1}, requests: {cpu: 1}}}]}}
- {apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: train}}
`)
	var names []string
	for _, pod := range m.pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	const want = "other/d-0 default/r-0 default/r-1 default/j-0 default/j-1 default/j-2 default/c-0 default/p"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("pods are %s, want %s", got, want)
	}
	requests := m.pods[len(m.pods)-1].Spec.Containers[0].Resources.Requests
	if gpus := requests["nvidia.com/gpu"]; !gpus.Equal(resource.MustParse("1")) || requests.Cpu().String() != "1" {
		t.Errorf("requests are %v: limits count where there is no request", requests)
	}
	if len(m.Ignored) != 1 || m.Ignored[0] != "JobSet/train" {
		t.Errorf("not looked at are %v", m.Ignored)
	}
}

// Files are read to their end or refused: nothing that they have stops the program.
func FuzzRead(f *testing.F) {
	f.Add("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\n---\n{}")
	f.Add("apiVersion: v1\nkind: List\nitems: [{kind: Pod}, null, 5]\n")
	f.Add("{\"kind\": \"Deployment\", \"apiVersion\": \"apps/v1\", \"spec\": {\"replicas\": 3}}")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := NewReader("default")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Read("fuzz", strings.NewReader(text)); err == nil && len(r.manifest.pods) > maxPods {
			t.Errorf("%d pods are read", len(r.manifest.pods))
		}
	})
}
