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
)

// TestAStolenTokenOfTheControllerGrowsNothing tries to make a node group grow, to keep an unneeded machine, and to
// write to a pod that has no GPU, with the controller's rights. deployments/helm tests what else the policies refuse.
func TestAStolenTokenOfTheControllerGrowsNothing(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 0)
	f := newThief(t)
	t.Run("groups", func(t *testing.T) { f.tryGroups(t, s) })
	t.Run("nodes", func(t *testing.T) { f.tryNodes(t, s) })
	t.Run("pods", func(t *testing.T) { f.tryPods(t, s) })
}

// tryGroups declares a group that would grow by itself, and deletes an administrator's.
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
	_, err := groups.Create(t.Context(), object(discovered(), fields{"pairing": "direct", "min": int64(0)}), metav1.CreateOptions{DryRun: dryRun})
	expectForbidden(t, err, "may declare a managed node group of EKS with pairing observe")
	// It selects no node, so that the controller does nothing with it.
	_, err = s.dynamicClient().Resource(gpuNodeGroups).Create(t.Context(), object(fields{}, fields{"pairing": "observe"}), metav1.CreateOptions{})
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
	const protect = `{"metadata":{"annotations":{"cluster-autoscaler.kubernetes.io/scale-down-disabled":"true","mica.gpu/protected-for":"use"}}}`
	_, err = f.CoreV1().Nodes().Patch(t.Context(), node.Name, types.MergePatchType, []byte(protect), metav1.PatchOptions{DryRun: dryRun})
	expectForbidden(t, err, "may write to nodes with GPUs and to no other")
	if _, err := f.CoreV1().Nodes().Patch(t.Context(), under.node, types.MergePatchType, []byte(protect), metav1.PatchOptions{DryRun: dryRun}); err != nil {
		t.Errorf("of a node with GPUs it is refused: %v", err)
	}
}

// tryPods writes a condition to a pod that asks for no device, and to one that does.
func (f *thief) tryPods(t *testing.T, s *scenario) {
	patch := func(name string, resources corev1.ResourceList) error {
		pod := s.createPod(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				SchedulingGates: []corev1.PodSchedulingGate{{Name: "e2e.mica.gpu/never"}},
				Containers: []corev1.Container{{
					Name: "c", Image: under.image, Resources: corev1.ResourceRequirements{Requests: resources, Limits: resources},
				}},
			},
		})
		const condition = `{"status":{"conditions":[{"type":"mica.gpu/ScaleUp","status":"False"}]}}`
		_, err := f.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(condition), metav1.PatchOptions{DryRun: dryRun}, "status")
		return err
	}
	expectForbidden(t, patch("plain", nil), "may write to pods that ask for devices")
	if err := patch("gpu", corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}); err != nil {
		t.Errorf("a condition of a pod that asks for a device is refused: %v", err)
	}
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
}
