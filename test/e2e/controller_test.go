//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestDeploymentOnEveryGPU(t *testing.T) {
	t.Parallel()
	s := newScenario(t, len(under.devices))
	s.createTemplate("one", s.claimFor(1))
	pod := s.podFromTemplate("", "one")
	labels := map[string]string{"app": "deployment"}
	_, err := s.client.AppsV1().Deployments(s.namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "deployment"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(int32(len(s.devices))),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	must(t, err, "create the Deployment")
	eventually(t, retryTimeout, "all pods of the Deployment are available", func(ctx context.Context) error {
		deployment, err := s.client.AppsV1().Deployments(s.namespace).Get(ctx, "deployment", metav1.GetOptions{})
		if err == nil && deployment.Status.AvailableReplicas != int32(len(s.devices)) {
			err = errors.Join(fmt.Errorf("%d of %d are available", deployment.Status.AvailableReplicas, len(s.devices)), s.nudgeRefused(ctx))
		}
		return err
	})
	s.expectEveryPodItsOwnGPU(labels, len(s.devices))
}

func (s *scenario) expectEveryPodItsOwnGPU(labels map[string]string, count int) {
	s.Helper()
	pods, err := s.client.CoreV1().Pods(s.namespace).List(s.Context(), metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: labels})})
	must(s, err, "list the pods")
	if len(pods.Items) != count {
		s.Errorf("there are %d pods, want %d", len(pods.Items), count)
	}
	groups := map[string][]device{}
	for _, pod := range pods.Items {
		groups[pod.Name] = s.expectOwnDevices(pod.Name)
	}
	s.expectDistinct(groups)
}

func TestJobRunsToCompletion(t *testing.T) {
	t.Parallel()
	s := newScenario(t, 2)
	s.createTemplate("one", s.claimFor(1))
	pod := s.podFromTemplate("", "one")
	pod.Spec.Containers[0].Args = []string{"once"}
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	labels := map[string]string{"app": "job"}
	const completions = 4
	_, err := s.client.BatchV1().Jobs(s.namespace).Create(t.Context(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "job"},
		Spec: batchv1.JobSpec{
			Completions:  ptr.To(int32(completions)),
			Parallelism:  ptr.To(int32(2)),
			BackoffLimit: ptr.To(int32(0)),
			Template:     corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	must(t, err, "create the Job")
	eventually(t, retryTimeout, "the Job completes", func(ctx context.Context) error {
		job, err := s.client.BatchV1().Jobs(s.namespace).Get(ctx, "job", metav1.GetOptions{})
		switch {
		case err != nil:
			return err
		case job.Status.Failed > 0:
			return fmt.Errorf("%w: %d pods failed", errNever, job.Status.Failed)
		case job.Status.Succeeded != completions:
			return errors.Join(fmt.Errorf("%d of %d pods succeeded", job.Status.Succeeded, completions), s.nudgeRefused(ctx))
		}
		return nil
	})
	pods, err := s.client.CoreV1().Pods(s.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app=job"})
	must(t, err, "list the Job's pods")
	for _, pod := range pods.Items {
		log, err := s.podLog(t.Context(), pod.Namespace, pod.Name, &corev1.PodLogOptions{})
		must(t, err, "read the log of pod %s", pod.Name)
		if seen := readSight(log); len(seen.uuids) != 1 || len(seen.devices) != 1 {
			t.Errorf("pod %s of the Job saw %s, want one GPU", pod.Name, seen)
		}
	}
	eventually(t, goneTimeout, "the completed Job's claims are gone although its pods are not", s.expectNoClaims)
}
