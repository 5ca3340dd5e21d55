//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// TestScaleOutNamesWhatTheStartupTaintKeepsOff has a node that waits for what waits for it: the
// DaemonSet of its driver does not tolerate the startup taint. What the controller says to do is done.
func TestScaleOutNamesWhatTheStartupTaintKeepsOff(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "gated")
	s.createDriver("gated")
	s.createTemplate("one", s.claimFor(1))
	s.createPods("pod", 1, "one")
	command := "kubectl -n " + s.namespace + " patch daemonset driver --type=json -p '"
	s.expectGroupCondition("gated", "NodesStuck", metav1.ConditionTrue, command)
	nodes, err := s.nodesOf(t.Context(), "gated")
	must(t, err, "list the nodes of gated")
	if len(nodes) != 1 {
		t.Fatalf("there are %d nodes of gated, want 1", len(nodes))
	}
	s.expectEvent("Node", nodes[0].Name, "mica-controller", "GPUNodeIncomplete", s.namespace+"/driver")

	_, patch, _ := strings.Cut(s.conditionMessage("gated", "NodesStuck"), command)
	patch, _, _ = strings.Cut(patch, "'")
	_, err = s.client.AppsV1().DaemonSets(s.namespace).Patch(t.Context(), "driver", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	must(t, err, "do what the condition says: %s", patch)
	eventually(t, nodeTimeout, "the driver is on the node", func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=driver"})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == nodes[0].Name {
				return nil
			}
		}
		return fmt.Errorf("it has %d pods, none of them there", len(pods.Items))
	})
	s.expectGroupCondition("gated", "NodesStuck", metav1.ConditionTrue, "the pods that publish its devices")
}

// createDriver makes a DaemonSet for the nodes of a group, which tolerates what they keep, for the time of
// the test: its pods would come back while the nodes are removed.
func (s *scaleOut) createDriver(group string) {
	s.Helper()
	labels := map[string]string{"app": "driver"}
	set := &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "driver"},
		Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				NodeSelector: map[string]string{nodegroupLabel: group},
				Tolerations:  []corev1.Toleration{{Key: "kwok.x-k8s.io/node", Operator: corev1.TolerationOpExists}},
				Containers:   s.plainPod("driver").Spec.Containers,
			}},
		},
	}
	_, err := s.client.AppsV1().DaemonSets(s.namespace).Create(s.Context(), set, metav1.CreateOptions{})
	must(s, err, "create the driver's DaemonSet")
	s.Cleanup(func() {
		if err := s.client.AppsV1().DaemonSets(s.namespace).Delete(context.Background(), set.Name, metav1.DeleteOptions{}); err != nil {
			s.Errorf("delete the driver's DaemonSet: %v", err)
		}
	})
}

// conditionMessage is that of a group's condition now.
func (s *scaleOut) conditionMessage(group, kind string) string {
	s.Helper()
	object, err := s.dynamic(gpuNodeGroups).Get(s.Context(), group, metav1.GetOptions{})
	must(s, err, "get group %s", group)
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if c, _ := condition.(fields); c["type"] == kind {
			return fmt.Sprint(c["message"])
		}
	}
	s.Fatalf("group %s has no condition %s", group, kind)
	return ""
}
