package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mica-gpu/mica/test/manifest"
)

const pod = `{spec: {containers: [{name: main, image: none}]}}`

func TestPodsOf(t *testing.T) {
	for name, test := range map[string]struct {
		object string
		want   string
	}{
		"pod":        {`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {containers: [{name: main, image: none}]}}`, "a x1"},
		"deployment": {`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {replicas: 3, template: ` + pod + `}}`, "a x3 forever"},
		"scaled":     {`{apiVersion: apps/v1, kind: Deployment, metadata: {name: a}, spec: {template: ` + pod + `}}`, "a x1 forever"},
		"service":    {`{apiVersion: v1, kind: Service, metadata: {name: a}}`, ""},
		"group": {
			`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: a}, spec: {replicas: 2, leaderWorkerTemplate: {size: 4, workerTemplate: ` + pod + `}}}`,
			"a x2 forever, a-worker x6 forever",
		},
		"job set": {
			`{apiVersion: jobset.x-k8s.io/v1alpha2, kind: JobSet, metadata: {name: a}, spec: {replicatedJobs: [{name: b, replicas: 2, template: {spec: {parallelism: 5, template: ` + pod + `}}}]}}`,
			"a-b-0 x5, a-b-1 x5",
		},
		"unknown field of a known kind": {`{apiVersion: v1, kind: Pod, metadata: {name: a}, spec: {tolerate: true}}`, `unknown field "spec.tolerate"`},
		"unknown field of a template": {
			`{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, metadata: {name: a}, spec: {leaderWorkerTemplate: {workerTemplate: {spec: {tolerate: true}}}}}`,
			`decode the worker of LeaderWorkerSet a: strict decoding error: unknown field "spec.tolerate"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := describe(test.object); !strings.HasSuffix(got, test.want) || test.want == "" && got != "" {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func describe(document string) string {
	objects, err := manifest.Read([]byte("# An example.\n" + document))
	if err != nil {
		return err.Error()
	}
	var all []string
	for _, object := range objects {
		pods, err := manifest.PodsOf(object)
		if err != nil {
			return err.Error()
		}
		for _, p := range pods {
			text := fmt.Sprintf("%s x%d", p.Name, p.Count)
			if p.Forever {
				text += " forever"
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}
