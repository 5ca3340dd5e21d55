//go:build e2e

package e2e

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestKEDASurvivesItsController kills the controller that serves KEDA. Between two leaders nothing
// is known, and so nothing is scaled. Apart from the other tests: KEDA comes back late to
// ScaledObjects that it first sees then.
func TestKEDASurvivesItsController(t *testing.T) {
	requireKEDA(t)
	s := &scaleOut{scenario: newScenario(t, 1)}
	s.createTemplate("one", s.claimFor(1))
	d := s.newScaled("led", s.ending(s.podFromTemplate("", "one")))
	d.waiting(0)
	d.scaledBy(5, d.byWaiting())
	d.waiting(5)
	d.expectReplicas(1)

	before := d.generation()
	killed := s.awaitLeader("", 0)
	s.killLeaders(1)
	s.awaitLeader(killed, 0)
	// Longer than the cooldown after anyone could last have been active.
	d.awaitActiveAfter(time.Now().Add(cooldown + 2*kedaPolling))
	if now := d.generation(); now != before {
		t.Errorf("Deployment led was changed %d times when the controller was killed, and has %d replicas", now-before, d.replicas())
	}
	d.waiting(0)
	d.expectReplicas(0)
}

// generation counts the changes to what is wanted of the Deployment.
func (s *scaled) generation() int64 {
	s.Helper()
	deployment, err := s.client.AppsV1().Deployments(s.namespace).Get(s.Context(), s.name, metav1.GetOptions{})
	must(s, err, "get Deployment %s", s.name)
	return deployment.Generation
}
