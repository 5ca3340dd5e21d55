package migrate

import (
	"testing"

	"github.com/mica-gpu/mica/test/fixture"
)

// KEDA scales whatever has /scale, and so do triggers of Mica.
func TestTheTargetOfAScaledObject(t *testing.T) {
	for name, tc := range map[string]struct{ ref, want string }{
		"KEDA's default": {"{name: llm}", "Deployment/llm"},
		"a StatefulSet":  {"{apiVersion: apps/v1, kind: StatefulSet, name: llm}", "StatefulSet/llm"},
		"another kind":   {"{apiVersion: leaderworkerset.x-k8s.io/v1, kind: LeaderWorkerSet, name: llm}", "LeaderWorkerSet.leaderworkerset.x-k8s.io/llm"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := targetOf(document{text: []byte("spec: {scaleTargetRef: " + tc.ref + "}")})
			if err != nil || got != tc.want {
				t.Errorf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
	_, err := targetOf(document{text: []byte("spec: {scaleTargetRef: {kind: Rollout, name: llm}}")})
	fixture.Sentence(t, err, "Rollout", "spec.scaleTargetRef.apiVersion")
}
