//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestKEDA scales Deployments by KEDA, on our metrics. Apart from the other tests: their pending pods would keep the autoscaler from removing
// nodes.
func TestKEDA(t *testing.T) {
	requireKEDA(t)
	t.Run("standby", testKEDAStandby) // is over before the others begin
	t.Run("chain", testKEDAChain)
	t.Run("capacity cap", testKEDACapacityCap)
	t.Run("gang", testKEDAGang)
	t.Run("queue", testKEDAQueue)
	t.Run("refused triggers", testKEDARefusedTriggers)
	t.Run("use", testKEDAUse)
	t.Run("hold", testKEDAHold)
	t.Run("examples", testKEDAExamples)
	t.Run("dashboards and alerts", testObservability)
}

// testKEDAChain goes from requests to nodes and back.
func testKEDAChain(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "keda-chain")
	s.createTemplate("one", s.claimFor(1))
	d := s.newScaled("chain", s.onGroups(s.podFromTemplate("", "one")))
	d.waiting(0)
	d.scaledBy(5, d.byWaiting())

	d.waiting(5)
	d.expectReplicasWithin(nodeTimeout, 1)
	d.awaitNodes("keda-chain", 1) // an L4's node has one GPU
	d.waiting(30)
	d.expectReplicasWithin(nodeTimeout, 3)
	d.expectClaims(3)
	d.awaitNodes("keda-chain", 3)

	d.waiting(5)
	d.expectReplicas(1)
	d.expectClaims(1)
	d.awaitNodes("keda-chain", 1)
	d.waiting(0)
	d.expectReplicas(0)
	d.expectClaims(0)
	d.awaitNodes("keda-chain", 0)
}

// testKEDACapacityCap has requests for 50 replicas, and 8 GPUs that a node could bring.
func testKEDACapacityCap(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "keda-cap")
	s.createTemplate("one", s.claimFor(1))
	d := s.newScaled("capped", s.onGroups(s.podFromTemplate("", "one")))
	d.waiting(0)
	d.scaledBy(60, d.byWaiting())
	d.waiting(500)
	d.expectReplicasWithin(nodeTimeout, 8)
	d.expectClaims(8)
	// Eight for each ten requests: also with all of them in use.
	d.expectMetric("80")
	d.expectEventOf("Deployment", "ScaleCapped", "8")
	eventually(t, scaleTimeout, "the HorizontalPodAutoscaler wants 8 replicas", func(ctx context.Context) error {
		autoscaler, err := d.autoscaler(ctx)
		if err == nil && autoscaler.Status.DesiredReplicas != 8 {
			err = fmt.Errorf("it wants %d", autoscaler.Status.DesiredReplicas)
		}
		return err
	})
	if replicas := d.replicas(); replicas != 8 {
		t.Errorf("there are %d replicas, want the 8 that can run", replicas)
	}
}

// testKEDARefusedTriggers expects the reason where a user of KEDA looks.
func testKEDARefusedTriggers(t *testing.T) {
	t.Parallel()
	s := &scaleOut{scenario: newScenario(t, 0)}
	for _, test := range []struct {
		name    string
		trigger fields
		words   []string
	}{
		{"metric", fields{"metric": "gpuTemperature", "threshold": "1"}, []string{"gpuTemperature", "gpuUtilization"}},
		{"right", fields{"metric": "gpuUtilization", "target": "DaemonSet.apps/right", "threshold": "70"}, []string{"may not be read", "scaleTargets"}},
		{"target", fields{"metric": "gpuUtilization", "target": "Deployment/absent", "threshold": "70"}, []string{"absent"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := *s.scenario
			s.TB = t
			d := (&scaleOut{scenario: &s}).newScaled(test.name, s.plainPod(""))
			d.scaledBy(5, d.byMica(test.trigger))
			d.expectEventOf("ScaledObject", "KEDAScalerFailed", test.words...)
			d.expectStatusCondition("Ready", "False", "TriggerError")
			if replicas := d.replicas(); replicas != 0 {
				t.Errorf("there are %d replicas, want none", replicas)
			}
		})
	}
}

// ending is a pod that ends within a second of its deletion.
func (s *scaleOut) ending(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(1))
	return pod
}

func (s *scaled) replicas() int32 {
	s.Helper()
	deployment, err := s.client.AppsV1().Deployments(s.namespace).Get(s.Context(), s.name, metav1.GetOptions{})
	must(s, err, "get Deployment %s", s.name)
	return *deployment.Spec.Replicas
}
