//go:build conformance

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	customMetrics = "custom.metrics.k8s.io"
	// loaded is the name of the Deployment and of its HorizontalPodAutoscaler.
	loaded   = "loaded"
	loadPort = 8080
	// target is the load per pod that the HorizontalPodAutoscaler aims at.
	target = 10
)

// TestPodAutoscaling is of KAR-0057: a Deployment whose pods have a GPU each goes from one replica to two and back, by a
// custom metric of its pods.
func TestPodAutoscaling(t *testing.T) {
	s := requires(t, "pod_autoscaling")
	groups, err := s.client.Discovery().ServerGroups()
	s.must(err, "list the API groups")
	if !slices.ContainsFunc(groups.Groups, func(group metav1.APIGroup) bool { return group.Name == customMetrics }) {
		s.skip("the cluster does not serve %s: install an adapter, such as prometheus-adapter, and let it pass on the gauge %s of pods", customMetrics, *metricFlag)
	}
	if all, _ := s.most(); all < 2 {
		s.skip("a second replica needs a second GPU: add a node")
	}
	t.Parallel()
	s.begin()
	s.createTemplate("one", 1, 1)
	s.createLoaded()
	first := s.awaitReplicas(1)[0]
	s.bump(first, target)
	s.createAutoscaler()
	s.eventually(metricsTimeout, "the autoscaler reads the gauge", func(ctx context.Context) error {
		autoscaler, err := s.autoscaler(ctx)
		if err != nil {
			return err
		}
		if len(autoscaler.Status.CurrentMetrics) == 0 || autoscaler.Status.CurrentMetrics[0].Pods == nil {
			return errors.New(conditionsOf(autoscaler))
		}
		return nil
	})
	s.bump(first, 2*target)
	both := s.awaitReplicas(2)
	for _, name := range both {
		pod, err := s.client.CoreV1().Pods(s.namespace).Get(t.Context(), name, metav1.GetOptions{})
		s.must(err, "get pod %s", name)
		s.Logf("pod %s has %v", name, s.allocated(pod))
	}
	// The second pod has no gauge until it is bumped; the sum then asks for one replica.
	s.bump(first, -3*target+1)
	second := both[slices.IndexFunc(both, func(name string) bool { return name != first })]
	s.bump(second, 1)
	s.awaitReplicas(1)
}

// createLoaded makes the Deployment, whose pods serve the gauge and say so as Prometheus' usual configuration reads it.
func (s *scenario) createLoaded() {
	s.Helper()
	spec := s.podSpec("one", container{"main", requestOf(0)})
	main := &spec.Containers[0]
	main.Image, main.Command, main.Stdin = *loadFlag, nil, false
	main.Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: loadPort}}
	main.ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(loadPort)}},
		PeriodSeconds: 1,
	}
	spec.RestartPolicy = corev1.RestartPolicyAlways
	labels := map[string]string{"app": loaded}
	_, err := s.client.AppsV1().Deployments(s.namespace).Create(s.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: loaded},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
					"prometheus.io/scrape": "true", "prometheus.io/port": strconv.Itoa(loadPort),
				}},
				Spec: spec,
			},
		},
	}, metav1.CreateOptions{})
	s.must(err, "create Deployment %s", loaded)
}

func (s *scenario) createAutoscaler() {
	s.Helper()
	_, err := s.client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Create(s.Context(), &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: loaded},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: loaded},
			MinReplicas:    ptr.To(int32(1)),
			MaxReplicas:    2,
			Metrics: []autoscalingv2.MetricSpec{{
				Type: autoscalingv2.PodsMetricSourceType,
				Pods: &autoscalingv2.PodsMetricSource{
					Metric: autoscalingv2.MetricIdentifier{Name: *metricFlag},
					Target: autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: resource.NewQuantity(target, resource.DecimalSI)},
				},
			}},
			Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
				ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: ptr.To(int32(0))},
			},
		},
	}, metav1.CreateOptions{})
	s.must(err, "create HorizontalPodAutoscaler %s", loaded)
}

func (s *scenario) autoscaler(ctx context.Context) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	return s.client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Get(ctx, loaded, metav1.GetOptions{})
}

func conditionsOf(autoscaler *autoscalingv2.HorizontalPodAutoscaler) string {
	text := "it has read nothing"
	for _, condition := range autoscaler.Status.Conditions {
		text += fmt.Sprintf("; %s is %s: %s", condition.Type, condition.Status, condition.Message)
	}
	return text
}

// bump adds to a pod's gauge, for longer than the test takes (resource-consumer's own README).
func (s *scenario) bump(pod string, delta int) {
	s.Helper()
	request := proxied(s.client.CoreV1().RESTClient().Post(), s.namespace, "pods", fmt.Sprintf("%s:%d", pod, loadPort), "BumpMetric").
		Param("metric", *metricFlag).Param("delta", strconv.Itoa(delta)).Param("durationSec", "86400")
	s.must(request.Do(s.Context()).Error(), "add %d to the gauge of pod %s", delta, pod)
}

// awaitReplicas waits until the Deployment has so many pods, all ready and none ending, and gives their names.
func (s *scenario) awaitReplicas(count int) []string {
	s.Helper()
	var names []string
	s.eventually(metricsTimeout+startTimeout, fmt.Sprintf("Deployment %s has %d ready replicas", loaded, count), func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + loaded})
		if err != nil {
			return err
		}
		names = nil
		states := make([]string, len(pods.Items))
		for i := range pods.Items {
			pod := &pods.Items[i]
			states[i] = pod.Name + ": " + summary(pod)
			if pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
				return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
			}) {
				names = append(names, pod.Name)
			}
		}
		if len(names) != count || len(pods.Items) != count {
			return fmt.Errorf("%d pods are ready: %q", len(names), states)
		}
		return nil
	})
	s.Logf("Deployment %s has %d ready replicas: %v", loaded, count, names)
	return names
}
