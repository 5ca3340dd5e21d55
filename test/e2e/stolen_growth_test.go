//go:build e2e

package e2e

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

// TestAStolenTokenOfTheControllerGrowsNothing tries to make node groups grow, to keep unneeded machines, and to
// disturb pods that have no GPU, with what the controller may do.
func TestAStolenTokenOfTheControllerGrowsNothing(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	f := newThief(t)
	t.Run("groups", func(t *testing.T) { f.tryGroups(t, s) })
	t.Run("nodes", func(t *testing.T) { f.tryNodes(t, s) })
	t.Run("pods", func(t *testing.T) { f.tryPods(t, s) })
}

// tryGroups declares groups that would grow by themselves, and deletes an administrator's.
func (f *thief) tryGroups(t *testing.T, s *scenario) {
	groups := dynamic.NewForConfigOrDie(f.config).Resource(gpuNodeGroups)
	object := func(labels, spec fields) *unstructured.Unstructured {
		spec["provider"] = fields{"eks": fields{"nodegroup": s.namespace}}
		return &unstructured.Unstructured{Object: fields{
			"apiVersion": "mica.gpu/v1alpha1", "kind": "GPUNodeGroup", "metadata": fields{"name": s.namespace, "labels": labels}, "spec": spec,
		}}
	}
	discovered := func() fields { return fields{"mica.gpu/discovered-from": "nodes"} }
	if _, err := groups.Create(t.Context(), object(discovered(), fields{"pairing": "observe"}), metav1.CreateOptions{DryRun: dryRun}); err != nil {
		t.Errorf("a group as the controller declares it is refused: %v", err)
	}
	for name, test := range map[string]struct {
		labels, spec fields
		want         string
	}{
		"forged":           {fields{}, fields{"pairing": "observe"}, "that it has discovered"},
		"direct":           {discovered(), fields{"pairing": "direct", "min": int64(0)}, "may declare a managed node group of EKS with pairing observe"},
		"with a minimum":   {discovered(), fields{"pairing": "observe", "min": int64(5000)}, "without min and max only"},
		"with a maximum":   {discovered(), fields{"pairing": "observe", "max": int64(5000)}, "without min and max only"},
		"that ends nodes":  {discovered(), fields{"pairing": "observe", "scaleInAfter": "1s"}, "without scaleInAfter"},
		"the cheapest one": {discovered(), fields{"pairing": "observe", "pricePerHour": "0"}, "pricePerHour"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := groups.Create(t.Context(), object(test.labels, test.spec), metav1.CreateOptions{DryRun: dryRun})
			expectForbidden(t, err, test.want)
		})
	}
	// It selects no node, so that the controller does nothing with it.
	_, err := s.dynamicClient().Resource(gpuNodeGroups).Create(t.Context(), object(fields{}, fields{"pairing": "observe"}), metav1.CreateOptions{})
	must(t, err, "declare a group")
	t.Cleanup(func() {
		must(t, s.dynamicClient().Resource(gpuNodeGroups).Delete(context.WithoutCancel(t.Context()), s.namespace, metav1.DeleteOptions{}), "delete the group")
	})
	t.Run("deletes an administrator's", func(t *testing.T) {
		expectForbidden(t, groups.Delete(t.Context(), s.namespace, metav1.DeleteOptions{DryRun: dryRun}), "that it has discovered")
	})
}

// tryNodes writes to a node without GPUs what the controller may write to others.
func (f *thief) tryNodes(t *testing.T, s *scenario) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.namespace, Labels: map[string]string{corev1.LabelInstanceTypeStable: "m7i.large"}}}
	node.Spec.Taints = []corev1.Taint{{Key: testLabel, Effect: corev1.TaintEffectNoSchedule}}
	_, err := s.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	must(t, err, "create a Node")
	t.Cleanup(func() {
		must(t, s.client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}), "delete the Node")
	})
	for name, patch := range map[string]string{
		"cordons":  `{"metadata":{"annotations":{"mica.gpu/scale-in":"cordoned 2026-01-01T00:00:00Z"}},"spec":{"unschedulable":true}}`,
		"protects": `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true","mica.gpu/protected-for":"use"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
			expectForbidden(t, err, "may write to nodes with GPUs and to no other")
			if _, err := f.CoreV1().Nodes().Patch(t.Context(), under.node, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun}); err != nil {
				t.Errorf("of a node with GPUs it is refused: %v", err)
			}
		})
	}
}

// tryPods writes to pods what keeps them from a node, ends them first, or lets them serve.
func (f *thief) tryPods(t *testing.T, s *scenario) {
	pod := func(name string, resources corev1.ResourceList, gates ...corev1.PodReadinessGate) *corev1.Pod {
		return s.createPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "e2e.mica.gpu/never"}},
				ReadinessGates:  gates,
				Containers: []corev1.Container{{
					Name: "c", Image: under.image, Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
				}},
			},
		})
	}
	plain := pod("plain", nil)
	gpu := pod("gpu", corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}, corev1.PodReadinessGate{ConditionType: "mica.gpu/serving"})
	patch := func(of *corev1.Pod, text string) error {
		_, err := f.CoreV1().Pods(of.Namespace).Patch(t.Context(), of.Name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{DryRun: dryRun}, "status")
		return err
	}
	const ours = `{"status":{"conditions":[{"type":"mica.gpu/ScaleUp","status":"False"}]}}`
	for name, text := range map[string]string{
		"a condition":     ours,
		"a deletion cost": `{"metadata":{"annotations":{"controller.kubernetes.io/pod-deletion-cost":"-2147483648"}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			expectForbidden(t, patch(plain, text), "may write to pods that ask for devices")
		})
	}
	if err := patch(gpu, ours); err != nil {
		t.Errorf("a condition of a pod that asks for a device is refused: %v", err)
	}
	t.Run("a gate of a pod that has not loaded", func(t *testing.T) {
		expectForbidden(t, patch(gpu, `{"status":{"conditions":[{"type":"mica.gpu/serving","status":"True"}]}}`), "whose containers are ready")
	})
}

// TestForgedPlaceholders is a tenant's pod with the label and the owner of a placeholder.
func TestForgedPlaceholders(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	pod := newThief(t).placeholder()
	pod.Spec.PriorityClassName = ""
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.mica.gpu/never"}}
	_, err := s.client.CoreV1().Pods(s.namespace).Create(t.Context(), pod, metav1.CreateOptions{DryRun: dryRun})
	expectForbidden(t, err, "only the Mica controller creates those")
	pod.OwnerReferences = nil
	created, err := s.client.CoreV1().Pods(s.namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	must(t, err, "create a pod with the label alone")
	created.OwnerReferences = []metav1.OwnerReference{{APIVersion: "mica.gpu/v1alpha1", Kind: "GPUNodeGroup", Name: "mica-e2e-none", UID: "none", Controller: ptr.To(true)}}
	_, err = s.client.CoreV1().Pods(s.namespace).Update(t.Context(), created, metav1.UpdateOptions{DryRun: dryRun})
	expectForbidden(t, err, "only the Mica controller creates those")
}
