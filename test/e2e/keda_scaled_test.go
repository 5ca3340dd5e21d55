//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

var scaledObjects = schema.GroupVersionResource{Group: "keda.sh", Version: "v1alpha1", Resource: "scaledobjects"}

const (
	// kedaNamespace is where hack/keda.sh installs KEDA, Prometheus and vLLM's metrics.
	kedaNamespace  = "keda"
	prometheusPort = "19090"
	// kedaPolling and cooldown are KEDA's, short where it is not itself that is tested.
	kedaPolling = time.Second
	cooldown    = 3 * time.Second
	// scaleTimeout bounds what takes the horizontal pod autoscaler two looks, 15 s apart, on a
	// busy machine.
	scaleTimeout = 4 * time.Minute
)

// scaled is a Deployment that KEDA scales, called as its ScaledObject and as its model.
type scaled struct {
	*scaleOut
	name string
}

// newScaled makes a Deployment without replicas. Its pods have a claim of one GPU each, if
// there is a claim template of that name.
func (s *scaleOut) newScaled(name string, pod *corev1.Pod) *scaled {
	s.Helper()
	labels := map[string]string{"app": name}
	_, err := s.client.AppsV1().Deployments(s.namespace).Create(s.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: new(int32),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	must(s, err, "create Deployment %s", name)
	// Before its pods are deleted with what they are on: it would make new ones.
	s.Cleanup(func() {
		if err := s.client.AppsV1().Deployments(s.namespace).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Errorf("delete Deployment %s: %v", name, err)
		}
	})
	return &scaled{s, name}
}

// scaledBy declares the ScaledObject with one trigger, for the time of the test.
func (s *scaled) scaledBy(maximum int64, trigger fields) {
	s.Helper()
	s.scaledWithin(0, maximum, trigger)
}

// scaledWithin is scaledBy with replicas that stay, whatever the trigger says.
func (s *scaled) scaledWithin(minimum, maximum int64, triggers ...fields) {
	s.Helper()
	s.scaledObjectOf(fields{"name": s.name}, minimum, maximum, triggers...)
}

// scaledObjectOf is scaledWithin for a target of any kind.
func (s *scaled) scaledObjectOf(target fields, minimum, maximum int64, triggers ...fields) {
	s.Helper()
	all := make([]any, len(triggers))
	for i, trigger := range triggers {
		all[i] = trigger
	}
	spec := fields{
		"scaleTargetRef":  target,
		"pollingInterval": int64(kedaPolling.Seconds()), "cooldownPeriod": int64(cooldown.Seconds()),
		"minReplicaCount": minimum, "maxReplicaCount": maximum,
		"advanced": fields{"horizontalPodAutoscalerConfig": fields{
			"behavior": fields{"scaleDown": fields{"stabilizationWindowSeconds": int64(0)}},
		}},
		"triggers": all,
	}
	_, err := s.scaledObjects().Create(s.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "metadata": fields{"name": s.name}, "spec": spec,
	}}, metav1.CreateOptions{})
	must(s, err, "create ScaledObject %s", s.name)
	s.Cleanup(s.unscale)
}

// unscale waits until KEDA has let go, so that nothing scales what is being cleaned up.
func (s *scaled) unscale() {
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout+retryTimeout)
	defer cancel()
	if s.Failed() {
		s.logScaling(ctx)
	}
	err := until(ctx, func(ctx context.Context) error {
		err := s.scaledObjects().Delete(ctx, s.name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("KEDA still holds it"))
	})
	if err != nil {
		s.Errorf("delete ScaledObject %s: %v", s.name, err)
	}
}

func (s *scaled) scaledObjects() dynamic.ResourceInterface {
	s.Helper()
	return s.inNamespace(scaledObjects)
}

// byMica is a trigger of our scaler.
func (s *scaled) byMica(metadata fields) fields {
	merged := fields{"scalerAddress": fmt.Sprintf("mica-controller-keda.%s.svc:9443", s.plugin.namespace)}
	for key, value := range metadata {
		merged[key] = value
	}
	return fields{"type": "external", "metadata": merged}
}

// byWaiting has a replica for each ten requests that wait for the model.
func (s *scaled) byWaiting() fields {
	return s.byMica(fields{
		"metric": "prometheus", "target": "Deployment/" + s.name, "query": s.waitingQuery(), "threshold": "10",
	})
}

// waitingQuery finds something also when Prometheus, on a busy machine, has missed one of its scrapes, one per second.
func (s *scaled) waitingQuery() string {
	return fmt.Sprintf("sum(last_over_time(vllm:num_requests_waiting{model_name=%q}[5s]))", s.name)
}

func prometheusAddress() string { return "http://" + os.Getenv("MICA_NODE_IP") + ":" + prometheusPort }

// waiting lets so many requests wait for the model, and returns when it did.
func (s *scaled) waiting(requests int) time.Time {
	s.Helper()
	load, err := json.Marshal(map[string]int{"waiting": requests})
	must(s, err, "encode the load of %s", s.name)
	request := s.client.CoreV1().RESTClient().Put().Namespace(kedaNamespace).Resource("services").
		Name("vllmsim:8000").SubResource("proxy").Suffix("models/" + s.name).Body(load)
	must(s, request.Do(s.Context()).Error(), "set the load of model %s", s.name)
	return time.Now()
}

// expectReplicas waits until the Deployment has been scaled to so many, and all are available.
func (s *scaled) expectReplicas(count int32) {
	s.Helper()
	s.expectReplicasWithin(scaleTimeout, count)
}

func (s *scaled) expectReplicasWithin(limit time.Duration, count int32) {
	s.Helper()
	eventually(s, limit, fmt.Sprintf("Deployment %s has %d replicas, all available", s.name, count), func(ctx context.Context) error {
		deployment, err := s.client.AppsV1().Deployments(s.namespace).Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if *deployment.Spec.Replicas != count || deployment.Status.AvailableReplicas != count || deployment.Status.Replicas != count {
			err := fmt.Errorf("%d are wanted, %d are there, %d are available", *deployment.Spec.Replicas, deployment.Status.Replicas, deployment.Status.AvailableReplicas)
			return errors.Join(err, s.nudgeRefused(ctx))
		}
		return nil
	})
}

// expectClaims waits until the namespace has so many claims, all allocated.
func (s *scaled) expectClaims(count int) {
	s.Helper()
	eventually(s, goneTimeout, fmt.Sprintf("there are %d claims, all allocated", count), func(ctx context.Context) error {
		claims, err := s.client.ResourceV1().ResourceClaims(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		allocated := 0
		for i := range claims.Items {
			if claims.Items[i].Status.Allocation != nil {
				allocated++
			}
		}
		if len(claims.Items) != count || allocated != count {
			return fmt.Errorf("there are %d, %d allocated", len(claims.Items), allocated)
		}
		return nil
	})
}

// awaitNodes waits until a group has so many nodes.
func (s *scaled) awaitNodes(group string, count int) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("group %s has %d nodes", group, count), func(ctx context.Context) error {
		nodes, err := s.nodesOf(ctx, group)
		if err == nil && len(nodes) != count {
			err = fmt.Errorf("it has %d", len(nodes))
		}
		return err
	})
}

// expectEventOf waits for an Event of an object of the namespace.
func (s *scaled) expectEventOf(kind, reason string, texts ...string) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("%s %s has an Event %s with %q", kind, s.name, reason, texts), func(ctx context.Context) error {
		events, err := s.client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{
			FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + s.name,
		})
		if err != nil {
			return err
		}
		var others []string
		for _, event := range events.Items {
			if event.Reason == reason && containsAll(event.Message, texts) {
				return nil
			}
			others = append(others, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("there are %q", others)
	})
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// expectStatusCondition waits for a condition of the ScaledObject.
func (s *scaled) expectStatusCondition(kind, status, reason string) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("ScaledObject %s has %s %s, %s", s.name, kind, status, reason), func(ctx context.Context) error {
		object, err := s.scaledObjects().Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, condition := range conditions {
			c, _ := condition.(fields)
			if c["type"] == kind && c["status"] == status && c["reason"] == reason {
				return nil
			}
		}
		return fmt.Errorf("it has %v", conditions)
	})
}

// awaitActiveAfter waits until KEDA has found the trigger active at a later time.
func (s *scaled) awaitActiveAfter(moment time.Time) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("the trigger of %s is active after %s", s.name, moment.Format(time.TimeOnly)), func(ctx context.Context) error {
		object, err := s.scaledObjects().Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text, _, err := unstructured.NestedString(object.Object, "status", "lastActiveTime")
		if err != nil {
			return err
		}
		last, err := time.Parse(time.RFC3339, text)
		if err == nil && !last.After(moment) {
			err = fmt.Errorf("it was last active at %s", last.Format(time.TimeOnly))
		}
		return err
	})
}

// metric is the value that KEDA serves to the horizontal pod autoscaler.
func (s *scaled) metric(ctx context.Context) (string, error) {
	object, err := s.scaledObjects().Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	names, _, err := unstructured.NestedStringSlice(object.Object, "status", "externalMetricNames")
	if err != nil || len(names) != 1 {
		return "", fmt.Errorf("it has the metrics %q, %w", names, err)
	}
	return s.value(ctx, names[0])
}

// value is KEDA's value of a metric.
func (s *scaled) value(ctx context.Context, name string) (string, error) {
	content, err := s.client.Discovery().RESTClient().Get().
		AbsPath("apis/external.metrics.k8s.io/v1beta1/namespaces", s.namespace, name).
		Param("labelSelector", "scaledobject.keda.sh/name="+s.name).DoRaw(ctx)
	if err != nil {
		return "", err
	}
	var list struct {
		Items []struct {
			Value string `json:"value"`
		} `json:"items"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return "", err
	}
	if len(list.Items) != 1 {
		return "", fmt.Errorf("there are %d values", len(list.Items))
	}
	return list.Items[0].Value, nil
}

// expectMetric waits until KEDA serves the value, a quantity.
func (s *scaled) expectMetric(want string) {
	s.Helper()
	eventually(s, scaleTimeout, fmt.Sprintf("KEDA's metric of %s is %s", s.name, want), func(ctx context.Context) error {
		got, err := s.metric(ctx)
		if err == nil && got != want {
			err = fmt.Errorf("it is %s", got)
		}
		return err
	})
}

func (s *scaled) autoscaler(ctx context.Context) (*autoscalingv2.HorizontalPodAutoscaler, error) {
	return s.client.AutoscalingV2().HorizontalPodAutoscalers(s.namespace).Get(ctx, "keda-hpa-"+s.name, metav1.GetOptions{})
}

// logScaling writes what a reader of a failed test would ask for.
func (s *scaled) logScaling(ctx context.Context) {
	object, err := s.scaledObjects().Get(ctx, s.name, metav1.GetOptions{})
	if err == nil {
		s.Logf("ScaledObject %s: %v", s.name, object.Object["status"])
	}
	if autoscaler, err := s.autoscaler(ctx); err == nil {
		s.Logf("its HorizontalPodAutoscaler: %+v", autoscaler.Status)
	}
	value, err := s.metric(ctx)
	s.Logf("its metric: %s, %v", value, err)
	pods, err := s.client.CoreV1().Pods(kedaNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=keda-operator"})
	if err != nil {
		return
	}
	for _, pod := range pods.Items {
		tail := int64(40)
		log, err := s.podLog(ctx, pod.Namespace, pod.Name, &corev1.PodLogOptions{TailLines: &tail})
		s.Logf("KEDA's operator: %s; its last log lines (%v):\n%s", summary(&pod), err, log)
	}
}

// requireKEDA waits until KEDA and what is around it serve, or skips the test.
func requireKEDA(t testing.TB) {
	t.Helper()
	_, err := under.client.CoreV1().Namespaces().Get(t.Context(), kedaNamespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		skip(t, "there is no namespace %s: hack/keda.sh installs KEDA on the local cluster", kedaNamespace)
	}
	must(t, err, "look for KEDA")
	eventually(t, startTimeout, "KEDA serves external metrics", func(ctx context.Context) error {
		return under.client.Discovery().RESTClient().Get().AbsPath("apis/external.metrics.k8s.io/v1beta1").Do(ctx).Error()
	})
}
