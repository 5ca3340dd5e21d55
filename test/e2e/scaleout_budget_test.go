//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	scaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	delayBefore  = "mica.gpu/scale-up-delay-before"
)

// TestOnlyPlannedPodsAreKeptFromClusterAutoscaler has a budget for no GPU at all. Pods for which Mica would ask for nodes
// are kept from Cluster Autoscaler for an hour, those of other drivers and those that are not planned are left to it, and a
// user's own delay comes back with the end of the budget.
func TestOnlyPlannedPodsAreKeptFromClusterAutoscaler(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "delayed")
	s.createBudget("e2e-delayed", fields{"namespaces": []any{s.namespace}, "gpus": int64(0)})
	s.expectStatus(gpuBudgets, "e2e-delayed", "observedGeneration", int64(1))
	class := s.createOtherClass()
	other := s.claimFor(1)
	other.Devices.Requests[0].Exactly.DeviceClassName = class
	s.createTemplate("one", s.claimFor(1, productIs("NVIDIA L4")))
	s.createTemplate("other", other)

	own := s.onGroups(s.podFromTemplate("own", "one"))
	own.Annotations = map[string]string{scaleUpDelay: "2m"}
	s.createPod(own)
	garbage := s.onGroups(s.podFromTemplate("garbage", "one"))
	garbage.Annotations = map[string]string{scaleUpDelay: "soon"}
	s.createPod(garbage)
	spread := s.onGroups(s.podFromTemplate("spread", "one"))
	spread.Labels = map[string]string{"e2e": "spread"}
	spread.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: spread.Labels},
	}}
	s.createPod(spread)
	s.createPods("planned", 1, "one")
	s.createPods("other", 1, "other")

	s.expectStatus(gpuBudgets, "e2e-delayed", "held", int64(3))
	for name, before := range map[string]string{"planned-0": "", "own": "2m", "garbage": "soon"} {
		s.expectDelay(name, func(pod *corev1.Pod) bool {
			delay, err := time.ParseDuration(pod.Annotations[scaleUpDelay])
			got, marked := pod.Annotations[delayBefore]
			return err == nil && marked && got == before && delay <= time.Since(pod.CreationTimestamp.Time)+time.Hour+time.Minute
		})
	}
	for _, name := range []string{"spread", "other-0"} {
		s.expectDelay(name, func(pod *corev1.Pod) bool {
			_, delayed := pod.Annotations[scaleUpDelay]
			_, marked := pod.Annotations[delayBefore]
			return !delayed && !marked
		})
	}
	s.bindBudget("e2e-delayed", "e2e-elsewhere")
	for name, want := range map[string]string{"planned-0": "", "own": "2m", "garbage": "soon"} {
		s.expectDelay(name, func(pod *corev1.Pod) bool {
			_, marked := pod.Annotations[delayBefore]
			return pod.Annotations[scaleUpDelay] == want && !marked
		})
	}
	s.expectPlaced("planned-0", "own", "garbage")
}

// bindBudget has a budget bound one namespace and no other.
func (s *scaleOut) bindBudget(name, namespace string) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec": {"namespaces": [%q]}}`, namespace)
	_, err := s.dynamic(gpuBudgets).Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(s, err, "bind GPUBudget %s to namespace %s", name, namespace)
}

// createOtherClass makes a DeviceClass of a driver that no node has.
func (s *scaleOut) createOtherClass() string {
	s.Helper()
	class, err := s.client.ResourceV1().DeviceClasses().Create(s.Context(), &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-other-", Labels: map[string]string{testLabel: ""}},
		Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
			CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "other.example.com"`},
		}}},
	}, metav1.CreateOptions{})
	must(s, err, "create a DeviceClass")
	s.Cleanup(func() {
		if err := s.client.ResourceV1().DeviceClasses().Delete(context.Background(), class.Name, metav1.DeleteOptions{}); err != nil {
			s.Errorf("delete DeviceClass %s: %v", class.Name, err)
		}
	})
	return class.Name
}

// expectDelay waits until what keeps a pod from Cluster Autoscaler is as it should be.
func (s *scenario) expectDelay(name string, right func(*corev1.Pod) bool) {
	s.Helper()
	eventually(s, startTimeout, "pod "+name+" is kept from Cluster Autoscaler, or left to it", func(ctx context.Context) error {
		pod, err := s.pod(ctx, name)
		if err == nil && !right(pod) {
			err = fmt.Errorf("it has the annotations %v", pod.Annotations)
		}
		return err
	})
}
