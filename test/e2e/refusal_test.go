//go:build e2e

package e2e

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// authorizerRace is part of the error that kubelet gets for a claim before the API
// server's node authorizer has observed that a pod with it was bound to the node. It happens
// on busy control planes, before any driver is called. kubelet asks again after 60 to 90
// seconds, or when the pod changes.
const authorizerRace = "no relationship found between node"

// nudgeInterval is how often a waiting pod is changed so that kubelet looks at it again.
const nudgeInterval = 2 * time.Second

// isRace reports whether a preparation failed because of that race in Kubernetes.
func isRace(event *corev1.Event) bool {
	return event.Reason == reasonPrepareFailed && strings.Contains(event.Message, authorizerRace)
}

// refused returns the names of the pods that met the race.
func (s *scenario) refused(ctx context.Context) ([]string, error) {
	events, err := s.client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reasonPrepareFailed})
	if err != nil {
		return nil, err
	}
	var pods []string
	for i := range events.Items {
		if isRace(&events.Items[i]) {
			pods = append(pods, events.Items[i].InvolvedObject.Name)
		}
	}
	return pods, nil
}

// nudgeRefused makes kubelet try again with the pods that met the race and do not run yet.
func (s *scenario) nudgeRefused(ctx context.Context) error {
	if time.Since(s.nudged) < nudgeInterval {
		return nil
	}
	s.nudged = time.Now()
	names, err := s.refused(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		pod, err := s.pod(ctx, name)
		if err != nil || isReady(pod) {
			continue // gone, or past it
		}
		s.Logf("kubelet was refused the claim of pod %s by the node authorizer; changing the pod so that kubelet tries again", name)
		if err := s.nudge(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// forgottenAfter is how long a pod of a test is unschedulable, for which there is room, until the
// scheduler is taken to have forgotten it.
const forgottenAfter = 15 * time.Second

// wakeScheduler has the scheduler try a pod again that it has forgotten. While a claim is being written,
// kube-scheduler counts the capacity of its share twice, as allocated and as in flight (GatherAllocatedState
// of its dra_manager.go; 1.37). A claim for the rest of that GPU is turned away at this moment, and nothing
// frees anything afterwards: it is tried again when five minutes have passed, or a label of a node changes.
func (s *scenario) wakeScheduler(ctx context.Context, pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Reason != corev1.PodReasonUnschedulable || time.Since(c.LastTransitionTime.Time) < forgottenAfter ||
			time.Since(s.woken) < forgottenAfter {
			continue
		}
		s.woken = time.Now()
		s.Logf("pod %s is unschedulable since %s; changing a label of its node so that the scheduler tries again", pod.Name, c.LastTransitionTime.Format(time.TimeOnly))
		patch, err := mergePatch(map[string]any{"metadata": map[string]any{"labels": map[string]string{"e2e.mica.gpu/woken": s.woken.Format("150405")}}})
		if err != nil {
			return err
		}
		if _, err := s.client.CoreV1().Nodes().Patch(ctx, s.node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// nudge changes an annotation of the pod.
func (s *scenario) nudge(ctx context.Context, pod string) error {
	patch, err := mergePatch(map[string]any{"metadata": map[string]any{"annotations": map[string]string{"mica.gpu/e2e-nudge": time.Now().String()}}})
	if err != nil {
		return err
	}
	_, err = s.client.CoreV1().Pods(s.namespace).Patch(ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}
