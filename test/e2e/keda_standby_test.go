//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// servingGate is the readiness gate of pods that wait loaded.
const servingGate = "mica.gpu/serving"

// testKEDAStandby has one replica serve and one wait, which serves a second after there is work for
// it, while KEDA brings the next one that waits. Alone: the second is for Mica, not for a dozen tests beside it.
func testKEDAStandby(t *testing.T) {
	s := &scaleOut{scenario: newScenario(t, 0)}
	pod := s.ending(s.plainPod(""))
	pod.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: servingGate}}
	d := s.newScaled("warmed", pod)
	d.exposed()
	d.waiting(0)
	trigger := d.byWaiting()
	trigger["metadata"].(fields)["warm"] = "1"
	d.scaledWithin(2, 5, trigger)
	first := d.awaitServing(2, 1)
	d.expectStandby()

	d.waiting(15)
	eventually(t, scaleTimeout, "the trigger asks for two replicas and a standby", func(ctx context.Context) error {
		value, err := d.metric(ctx)
		if err == nil && value != "25" {
			err = fmt.Errorf("it is %s", value)
		}
		return err
	})
	// That answer was the activation.
	began := time.Now()
	opened := false
	for !opened && time.Since(began) < time.Minute {
		opened = len(d.gatesOpen()) == 2
	}
	took := time.Since(began)
	t.Logf("the standby's gate was open %s after the activation", took.Round(time.Millisecond))
	if took > time.Second {
		t.Errorf("the standby's gate was open %s after the activation, want a second", took)
	}
	d.awaitEndpoints(2)
	t.Logf("the standby was in Endpoints %s after the activation", time.Since(began).Round(time.Millisecond))

	both := d.awaitServing(3, 2) // refilled
	if !slices.Contains(both, first[0]) {
		t.Errorf("%q serve, where %q did", both, first)
	}
	d.waiting(0)
	if left := d.awaitServing(2, 2); !slices.Equal(left, both) {
		t.Errorf("%q serve, where %q did: the standby is to go first", left, both)
	}
}

// exposed gives the Deployment a Service of its name.
func (s *scaled) exposed() {
	s.Helper()
	_, err := s.client.CoreV1().Services(s.namespace).Create(s.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": s.name}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(s, err, "create Service %s", s.name)
}

func (s *scaled) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + s.name})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list.Items, func(pod corev1.Pod) bool { return pod.DeletionTimestamp != nil }), nil
}

// awaitServing waits for a number of pods with a number of Ready ones, and returns the names of these.
func (s *scaled) awaitServing(count, ready int) (serving []string) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("%s has %d pods, %d of them Ready", s.name, count, ready), func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		serving = nil
		for i := range pods {
			if isReady(&pods[i]) {
				serving = append(serving, pods[i].Name)
			}
		}
		if slices.Sort(serving); len(pods) != count || len(serving) != ready {
			return fmt.Errorf("it has %d, Ready are %q", len(pods), serving)
		}
		return nil
	})
	return serving
}

// gatesOpen are the names of the pods whose gates are open.
func (s *scaled) gatesOpen() (names []string) {
	s.Helper()
	pods, err := s.pods(s.Context())
	must(s, err, "list the pods of %s", s.name)
	for _, pod := range pods {
		for _, c := range pod.Status.Conditions {
			if c.Type == servingGate && c.Status == corev1.ConditionTrue {
				names = append(names, pod.Name)
			}
		}
	}
	return names
}

// expectStandby waits until a pod's condition has the reason why its gate is closed.
func (s *scaled) expectStandby() {
	s.Helper()
	eventually(s, scaleTimeout, "a pod of "+s.name+" says that it waits", func(ctx context.Context) error {
		pods, err := s.pods(ctx)
		if err != nil {
			return err
		}
		var conditions []string
		for _, pod := range pods {
			for _, c := range pod.Status.Conditions {
				if c.Type == servingGate && c.Reason == "Standby" && c.Status == corev1.ConditionFalse {
					return nil
				}
				conditions = append(conditions, fmt.Sprint(c.Type, " ", c.Status, " ", c.Reason))
			}
		}
		return fmt.Errorf("their conditions are %q", conditions)
	})
}

// awaitEndpoints waits until the Service leads to so many pods.
func (s *scaled) awaitEndpoints(count int) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("Service %s leads to %d pods", s.name, count), func(ctx context.Context) error {
		list, err := s.client.DiscoveryV1().EndpointSlices(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + s.name})
		if err != nil {
			return err
		}
		ready := 0
		for _, slice := range list.Items {
			for _, endpoint := range slice.Endpoints {
				if endpoint.Conditions.Ready != nil && *endpoint.Conditions.Ready {
					ready++
				}
			}
		}
		if ready != count {
			return fmt.Errorf("it leads to %d", ready)
		}
		return nil
	})
}
