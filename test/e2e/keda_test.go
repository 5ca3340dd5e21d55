//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestKEDA scales Deployments by KEDA, on our metrics and, to tell its faults from ours, on its
// own. Apart from the other tests: their pending pods would keep the autoscaler from removing
// nodes.
func TestKEDA(t *testing.T) {
	requireKEDA(t)
	t.Run("standby", testKEDAStandby) // is over before the others begin
	t.Run("KEDA alone", testKEDAAlone)
	t.Run("chain", testKEDAChain)
	t.Run("loading guard", testKEDALoadingGuard)
	t.Run("capacity cap", testKEDACapacityCap)
	t.Run("gang", testKEDAGang)
	t.Run("queue", testKEDAQueue)
	t.Run("devices", testKEDADevices)
	t.Run("refused triggers", testKEDARefusedTriggers)
	t.Run("use", testKEDAUse)
	t.Run("hold", testKEDAHold)
	t.Run("examples", testKEDAExamples)
	t.Run("dashboards and alerts", testObservability)
}

// testKEDAAlone has KEDA's own trigger on the same requests, and no GPUs.
func testKEDAAlone(t *testing.T) {
	t.Parallel()
	s := &scaleOut{scenario: newScenario(t, 0)}
	d := s.newScaled("alone", s.ending(s.plainPod("")))
	d.waiting(0)
	d.scaledBy(5, d.byPrometheus())
	d.waiting(5)
	d.expectReplicas(1)
	d.waiting(30)
	d.expectReplicas(3)
	d.waiting(0)
	d.expectReplicas(0)
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

// testKEDALoadingGuard has a model that takes longer to load than its requests wait.
func testKEDALoadingGuard(t *testing.T) {
	t.Parallel()
	s := &scaleOut{scenario: newScenario(t, 1)}
	s.createTemplate("one", s.claimFor(1))
	pod := s.ending(s.podFromTemplate("", "one"))
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: modelLoaded}}
	d := s.newScaled("guarded", pod)
	d.waiting(0)
	d.scaledBy(5, d.byWaiting())

	d.waiting(5)
	loading := d.awaitLoading()
	gone := d.waiting(0)
	d.awaitActiveAfter(gone.Add(cooldown + 2*kedaPolling))
	if replicas := d.replicas(); replicas != 1 {
		t.Errorf("a model that loads has %d replicas, want 1", replicas)
	}
	d.load(loading)
	d.expectReplicas(0)
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

// testKEDADevices has a replica for each device that headroom keeps, and one for each that is
// free, which it is without headroom as well. Prometheus asks for more devices than may be kept.
func testKEDADevices(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "keda-devices")
	product := productIs("Tesla T4")
	s.createHeadroom("e2e-keda", fields{
		"deviceClassName": s.driver, "devices": int64(1), "nodeGroups": []any{"keda-devices"}, "selectors": []any{product},
	})
	ofDevices := func(metric string) *scaled {
		d := s.newScaled(strings.ToLower(metric), s.ending(s.plainPod("")))
		d.scaledBy(5, d.byMica(fields{"metric": metric, "deviceClass": s.driver, "selector": product, "threshold": "1"}))
		return d
	}
	warm, free := ofDevices("warmDevices"), ofDevices("freeDevices")
	s.expectHeadroom("e2e-keda", 1)
	warm.expectReplicas(1)
	free.expectReplicas(1)
	s.setQuery("e2e-keda", fields{"promQL": "5 * sum(vector(1))", "maxDevices": int64(2)})
	s.expectHeadroom("e2e-keda", 2)
	warm.expectReplicas(2)
	free.expectReplicas(2)
	s.setQuery("e2e-keda", nil)
	warm.expectReplicas(1)
	free.expectMetric("2")
}

// testKEDARefusedTriggers expects the reason where a user of KEDA looks.
func testKEDARefusedTriggers(t *testing.T) {
	t.Parallel()
	s := &scaleOut{scenario: newScenario(t, 0)}
	class := s.driver
	for _, test := range []struct {
		name    string
		trigger fields
		words   []string
	}{
		{"metric", fields{"metric": "gpuTemperature", "threshold": "1"}, []string{"gpuTemperature", "gpuUtilization"}},
		{"key", fields{"metric": "freeDevices", "deviceClass": class, "treshold": "1"}, []string{"treshold", "threshold"}},
		{"profile", fields{"metric": "gpuUtilization", "target": "Deployment/profile", "profile": "slow"}, []string{"slow", "conversational"}},
		{"cel", fields{"metric": "freeDevices", "deviceClass": class, "selector": "device.driver ==", "threshold": "1"}, []string{"selector", "device.driver =="}},
		{"promql", fields{"metric": "prometheus", "target": "Deployment/promql", "query": "sum(", "threshold": "1"}, []string{"sum("}},
		{"no-data", fields{"metric": "prometheus", "target": "Deployment/no-data", "query": "absent_metric", "threshold": "1"}, []string{"matches nothing", "valueWhileNotReady"}},
		{"kind", fields{"metric": "gpuUtilization", "target": "Unicorn.example.com/kind", "threshold": "70"}, []string{"no kind Unicorn.example.com"}},
		{"right", fields{"metric": "gpuUtilization", "target": "DaemonSet.apps/right", "threshold": "70"}, []string{"may not be read", "scaleTargets"}},
		{"target", fields{"metric": "gpuUtilization", "target": "Deployment/nobody", "threshold": "70"}, []string{"nobody"}},
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

// ending is a pod that ends as soon as it is told to.
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

// modelLoaded is a condition that tests give pods, which are not ready before.
const modelLoaded = "e2e.mica.gpu/ModelLoaded"

// awaitLoading waits for a pod that runs and is not ready.
func (s *scaled) awaitLoading() (name string) {
	s.Helper()
	eventually(s, scaleTimeout, "a pod of "+s.name+" loads its model", func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + s.name})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 {
			return fmt.Errorf("there are %d pods", len(pods.Items))
		}
		pod := &pods.Items[0]
		if pod.Status.Phase != corev1.PodRunning || isReady(pod) {
			return errors.Join(errors.New(summary(pod)), s.nudgeRefused(ctx))
		}
		name = pod.Name
		return nil
	})
	return name
}

// load makes a pod ready.
func (s *scaled) load(pod string) {
	s.Helper()
	patch, err := json.Marshal(fields{"status": fields{"conditions": []any{fields{"type": modelLoaded, "status": "True"}}}})
	must(s, err, "encode a pod's condition")
	_, err = s.client.CoreV1().Pods(s.namespace).Patch(s.Context(), pod, "application/strategic-merge-patch+json", patch, metav1.PatchOptions{}, "status")
	must(s, err, "make pod %s ready", pod)
}
