//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestKEDASurvivesItsController kills the controller that leads. The other answers KEDA meanwhile.
// Apart from the other tests, which would lose a poll.
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
	d.expectAnswers(5)
	s.awaitLeader(killed, 0)
	// Longer than the cooldown after anyone could last have been active.
	d.awaitActiveAfter(time.Now().Add(cooldown + 2*kedaPolling))
	if now := d.generation(); now != before {
		t.Errorf("Deployment led was changed %d times when the controller was killed, and has %d replicas", now-before, d.replicas())
	}
	d.waiting(0)
	d.expectReplicas(0)
}

// TestKEDAScalesWithoutAController has a printed ScaledObject follow its load while no controller runs. Apart
// from the other tests, which need one.
func TestKEDAScalesWithoutAController(t *testing.T) {
	requireKEDA(t)
	s := &scaleOut{scenario: newScenario(t, 3)}
	s.createTemplate("one", s.claimFor(1))
	d := s.newScaled("alone", s.ending(s.podFromTemplate("", "one")))
	d.startWith(1)
	d.waiting(0)
	s.applyAsUser(s.printScaledObject("deployment/alone --profile realtime --model alone --max 3"))
	t.Cleanup(d.unscale)
	d.expectDecision("composite-metric", "0", 1)
	s.stopControllers()
	d.waiting(25)
	d.expectReplicas(3)
}

// stopControllers has none run until the test ends.
func (s *scaleOut) stopControllers() {
	s.Helper()
	deployments := s.client.AppsV1().Deployments(s.plugin.namespace)
	found, err := deployments.List(s.Context(), metav1.ListOptions{LabelSelector: controllerSelector})
	must(s, err, "list the controller's Deployment")
	if len(found.Items) != 1 {
		s.Fatalf("%d Deployments have the controller's labels, want 1", len(found.Items))
	}
	name, replicas := found.Items[0].Name, ptr.Deref(found.Items[0].Spec.Replicas, 1)
	scale := func(ctx context.Context, count int32) error {
		_, err := deployments.UpdateScale(ctx, name, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.plugin.namespace}, Spec: autoscalingv1.ScaleSpec{Replicas: count},
		}, metav1.UpdateOptions{})
		return err
	}
	pods := func(ctx context.Context, want int) error {
		all, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerSelector})
		if err != nil {
			return err
		}
		ready := 0
		for _, pod := range all.Items {
			if want == 0 || isReady(&pod) {
				ready++
			}
		}
		if ready != want {
			return fmt.Errorf("there are %d", ready)
		}
		return nil
	}
	s.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), scaleTimeout) // the test's own has ended
		defer cancel()
		err := scale(ctx, replicas)
		if err == nil {
			err = until(ctx, func(ctx context.Context) error { return pods(ctx, int(replicas)) })
		}
		if err != nil {
			s.Errorf("start the controllers again: %v", err)
		}
	})
	must(s, scale(s.Context(), 0), "stop the controller")
	eventually(s, scaleTimeout, "no controller runs", func(ctx context.Context) error { return pods(ctx, 0) })
}

// generation counts the changes to what is wanted of the Deployment.
func (s *scaled) generation() int64 {
	s.Helper()
	deployment, err := s.client.AppsV1().Deployments(s.namespace).Get(s.Context(), s.name, metav1.GetOptions{})
	must(s, err, "get Deployment %s", s.name)
	return deployment.Generation
}

// expectAnswers reads the metric each second; one reading may fail.
func (s *scaled) expectAnswers(count int) {
	s.Helper()
	var failed []error
	for range count {
		if _, err := s.metric(s.Context()); err != nil {
			failed = append(failed, err)
		}
		time.Sleep(kedaPolling)
	}
	if len(failed) > 1 {
		s.Errorf("%d of %d polls have failed: %q", len(failed), count, failed)
	}
}
