//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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

// expectAnswers reads the metric each second, of which one may fail.
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

const (
	// survivors are as many ScaledObjects as are watched while controllers are killed.
	survivors = 100
	// occupied of them have a replica, and two of these devices.
	occupied = 10
	// killEvery is how long after one controller the next is killed, and killing how long.
	killEvery, killing = 30 * time.Second, 5 * time.Minute
)

// TestKEDASurvivesAnyController kills the controllers in turn for five minutes under a hundred
// ScaledObjects, with KEDA's own polling of 15 s and a fallback that would be seen.
func TestKEDASurvivesAnyController(t *testing.T) {
	if os.Getenv("MICA_E2E_LONG") == "" {
		t.Skip("this test takes eight minutes: set MICA_E2E_LONG to run it")
	}
	requireKEDA(t)
	s := &scaleOut{scenario: newScenario(t, 2)}
	s.createTemplate("one", s.claimFor(1))
	all := make([]*scaled, survivors)
	for i := range all {
		pod := s.plainPod("")
		if i < 2 || i >= occupied {
			pod = s.podFromTemplate("", "one")
		}
		all[i] = s.newScaled(fmt.Sprintf("survivor-%02d", i), s.ending(pod))
		requests := 0
		if i < occupied {
			requests = 5
		}
		all[i].waiting(requests)
	}
	for _, d := range all {
		d.scaledSlowly()
	}
	for _, d := range all[:occupied] {
		d.expectReplicas(1)
	}
	before := map[string]int64{}
	for _, d := range all {
		before[d.name] = d.generation()
	}
	failures, killed := int64(0), ""
	for until := time.Now().Add(killing); time.Now().Before(until); {
		killed = s.killController(killed)
		for next := time.Now().Add(killEvery); time.Now().Before(next); time.Sleep(2 * time.Second) {
			failures = max(failures, s.expectNoFallback(all))
		}
	}
	for _, d := range all {
		if now := d.generation(); now != before[d.name] {
			t.Errorf("Deployment %s was scaled %d times", d.name, now-before[d.name])
		}
	}
	t.Logf("the most polls in a row that failed for a trigger: %d", failures)
}

// scaledSlowly is scaledBy as KEDA does it by default, with a fallback.
func (s *scaled) scaledSlowly() {
	s.Helper()
	_, err := s.scaledObjects().Create(s.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": fields{"name": s.name},
		"spec": fields{
			"scaleTargetRef": fields{"name": s.name}, "minReplicaCount": int64(0), "maxReplicaCount": int64(5),
			"pollingInterval": int64(15), "cooldownPeriod": int64(cooldown.Seconds()),
			"fallback": fields{"failureThreshold": int64(3), "replicas": int64(3)},
			"triggers": []any{s.byWaiting()},
		},
	}}, metav1.CreateOptions{})
	must(s, err, "create ScaledObject %s", s.name)
	s.Cleanup(s.unscale)
}

// expectNoFallback gives how many polls in a row have failed at most.
func (s *scaleOut) expectNoFallback(all []*scaled) int64 {
	s.Helper()
	objects, err := all[0].scaledObjects().List(s.Context(), metav1.ListOptions{})
	must(s, err, "list ScaledObjects")
	most := int64(0)
	for _, object := range objects.Items {
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		if slices.ContainsFunc(conditions, func(c any) bool { return c.(fields)["type"] == "Fallback" && c.(fields)["status"] == "True" }) {
			s.Errorf("ScaledObject %s falls back: %v", object.GetName(), conditions)
		}
		health, _, _ := unstructured.NestedMap(object.Object, "status", "health")
		for _, metric := range health {
			failed, _, _ := unstructured.NestedInt64(metric.(fields), "numberOfFailures")
			most = max(most, failed)
		}
	}
	return most
}

// killController kills the controller that has run longest, which is another than the one before.
func (s *scaleOut) killController(before string) (killed string) {
	s.Helper()
	eventually(s, startTimeout, "two controllers are ready", func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerSelector})
		if err != nil {
			return err
		}
		ready := slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !isReady(&pod) || pod.DeletionTimestamp != nil })
		if len(ready) != 2 {
			return fmt.Errorf("%d are", len(ready))
		}
		oldest := slices.MinFunc(ready, func(a, b corev1.Pod) int {
			if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
				return c
			}
			return strings.Compare(a.Name, b.Name)
		})
		if oldest.Name == before {
			return fmt.Errorf("pod %s is still there", before)
		}
		killed = oldest.Name
		return nil
	})
	err := s.client.CoreV1().Pods(s.plugin.namespace).Delete(s.Context(), killed, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
	must(s, err, "kill controller %s", killed)
	return killed
}
