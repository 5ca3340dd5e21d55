//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// testLabel is on what the tests make beside the content of their namespaces.
const testLabel = "mica.gpu/e2e"

// scenario is one test's namespace. Its pods, claims and the namespace itself are gone, and
// its GPUs free, before the test ends.
type scenario struct {
	testing.TB
	*installation
	namespace string
	// nudged is when pods were last changed to make kubelet look at them again.
	nudged time.Time
	// woken is when the scheduler was last made to try again.
	woken time.Time
}

// newScenario reserves GPUs for the test and makes its namespace.
func newScenario(t testing.TB, gpus int) *scenario {
	t.Helper()
	t.Cleanup(under.gpus.reserve(t, gpus))
	namespace, err := under.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "mica-e2e-", Labels: map[string]string{testLabel: ""}},
	}, metav1.CreateOptions{})
	must(t, err, "create a namespace")
	s := &scenario{TB: t, installation: under, namespace: namespace.Name, nudged: time.Now()}
	t.Cleanup(s.cleanUp)
	eventually(t, startTimeout, "the namespace has its default ServiceAccount", func(ctx context.Context) error {
		_, err := s.client.CoreV1().ServiceAccounts(s.namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// cleanUp deletes what makes pods before the pods, and both before the namespace: the
// namespace's own deletion would wait half a pod's grace period before it looks again.
func (s *scenario) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout+retryTimeout)
	defer cancel()
	if s.Failed() {
		s.logDiagnosis(ctx)
	}
	background := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
	all := metav1.ListOptions{}
	err := errors.Join(
		s.client.AppsV1().Deployments(s.namespace).DeleteCollection(ctx, background, all),
		s.client.BatchV1().Jobs(s.namespace).DeleteCollection(ctx, background, all),
		until(ctx, s.deletePods),
		s.client.ResourceV1().ResourceClaims(s.namespace).DeleteCollection(ctx, background, all),
		until(ctx, s.expectNoClaims),
		s.client.CoreV1().Namespaces().Delete(ctx, s.namespace, metav1.DeleteOptions{}),
	)
	if err != nil {
		s.Errorf("clean up namespace %s: %v", s.namespace, err)
	}
}

func (s *scenario) deletePods(ctx context.Context) error {
	if err := s.client.CoreV1().Pods(s.namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(pods.Items) > 0 {
		return fmt.Errorf("%d pods are still there, the first is %s: %s", len(pods.Items), pods.Items[0].Name, summary(&pods.Items[0]))
	}
	return nil
}

func (s *scenario) expectNoClaims(ctx context.Context) error {
	claims, err := s.client.ResourceV1().ResourceClaims(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(claims.Items) > 0 {
		return fmt.Errorf("%d claims are still there, the first is %s", len(claims.Items), claims.Items[0].Name)
	}
	return nil
}

// logDiagnosis logs the state of a failed test, the most useful part last: a log is often cut at its
// beginning.
func (s *scenario) logDiagnosis(ctx context.Context) {
	plugins, err := s.pluginPods(ctx)
	if err != nil {
		s.Logf("diagnosis: %v", err)
	}
	for i := range plugins {
		log, err := s.podLog(ctx, plugins[i].Namespace, plugins[i].Name, &corev1.PodLogOptions{Container: pluginContainer, TailLines: ptr.To(int64(40))})
		s.Logf("plugin %s: %s; its last log lines (%v):\n%s", plugins[i].Name, summary(&plugins[i]), err, log)
	}
	events, err := s.client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.Logf("diagnosis: list Events: %v", err)
	} else {
		for _, event := range events.Items {
			if event.Type == corev1.EventTypeWarning && event.Reason != "MissingClusterDNS" {
				s.Logf("event %s %s %s/%s: %s", event.LastTimestamp.Format(time.TimeOnly), event.Reason, event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Message)
			}
		}
	}
	pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		s.Logf("diagnosis: list pods: %v", err)
		return
	}
	for i := range pods.Items {
		s.Logf("pod %s of %s: %s", pods.Items[i].Name, pods.Items[i].CreationTimestamp.Format(time.TimeOnly), summary(&pods.Items[i]))
	}
}

// summary is a pod's state in one line.
func summary(pod *corev1.Pod) string {
	parts := []string{string(pod.Status.Phase)}
	for _, condition := range pod.Status.Conditions {
		if condition.Status != corev1.ConditionTrue && condition.Message != "" {
			parts = append(parts, fmt.Sprintf("%s: %s", condition.Reason, condition.Message))
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		switch state := status.State; {
		case state.Waiting != nil:
			parts = append(parts, fmt.Sprintf("container %s waits: %s %s", status.Name, state.Waiting.Reason, state.Waiting.Message))
		case state.Terminated != nil:
			parts = append(parts, fmt.Sprintf("container %s ended: %s, exit code %d", status.Name, state.Terminated.Reason, state.Terminated.ExitCode))
		}
	}
	return strings.Join(parts, "; ")
}

func isReady(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// createTemplate makes a claim template, from which every pod gets a claim of its own.
func (s *scenario) createTemplate(name string, spec resourcev1.ResourceClaimSpec) {
	s.Helper()
	_, err := s.client.ResourceV1().ResourceClaimTemplates(s.namespace).Create(s.Context(), &resourcev1.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       resourcev1.ResourceClaimTemplateSpec{Spec: spec},
	}, metav1.CreateOptions{})
	must(s, err, "create ResourceClaimTemplate %s", name)
}

// createClaim makes a claim that pods can share.
func (s *scenario) createClaim(name string, spec resourcev1.ResourceClaimSpec) *resourcev1.ResourceClaim {
	s.Helper()
	claim, err := s.client.ResourceV1().ResourceClaims(s.namespace).Create(s.Context(), &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}, metav1.CreateOptions{})
	must(s, err, "create ResourceClaim %s", name)
	return claim
}

func (s *scenario) createPod(pod *corev1.Pod) *corev1.Pod {
	s.Helper()
	created, err := s.client.CoreV1().Pods(s.namespace).Create(s.Context(), pod, metav1.CreateOptions{})
	must(s, err, "create pod %s", pod.Name)
	return created
}

func (s *scenario) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	return s.client.CoreV1().Pods(s.namespace).Get(ctx, name, metav1.GetOptions{})
}

// waitRunning waits until all containers of the pod run, and returns the pod as it then is.
func (s *scenario) waitRunning(name string) *corev1.Pod {
	s.Helper()
	return s.waitRunningWithin(startTimeout, name)
}

func (s *scenario) waitRunningWithin(limit time.Duration, name string) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	eventually(s, limit, "pod "+name+" runs", func(ctx context.Context) (err error) {
		if pod, err = s.pod(ctx, name); err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
			return fmt.Errorf("%w: %s", errNever, summary(pod))
		}
		if !isReady(pod) {
			return errors.Join(errors.New(summary(pod)), s.nudgeRefused(ctx), s.wakeScheduler(ctx, pod))
		}
		return nil
	})
	return pod
}

// deletePod deletes the pod and waits until it is gone.
func (s *scenario) deletePod(name string) {
	s.Helper()
	s.beginDeletion(name)
	s.waitGone(name)
}

func (s *scenario) waitGone(name string) {
	s.Helper()
	eventually(s, goneTimeout, "pod "+name+" is gone", func(ctx context.Context) error {
		pod, err := s.pod(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New(summary(pod))
	})
}

// beginDeletion asks for the pod's deletion, which may have happened.
func (s *scenario) beginDeletion(name string) {
	s.Helper()
	err := s.client.CoreV1().Pods(s.namespace).Delete(s.Context(), name, metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		must(s, err, "delete pod %s", name)
	}
}

// expectUnschedulable waits until the scheduler has found no node for the pod.
func (s *scenario) expectUnschedulable(name string) {
	s.Helper()
	eventually(s, startTimeout, "the scheduler finds no node for pod "+name, func(ctx context.Context) error {
		pod, err := s.pod(ctx, name)
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return errors.New(summary(pod))
	})
}
