//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

var (
	definitions      = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	leaderWorkerSets = schema.GroupVersionResource{Group: "leaderworkerset.x-k8s.io", Version: "v1", Resource: "leaderworkersets"}
)

// testKEDAGang has requests for 50 groups of a leader with one GPU and a worker with two, and a node
// of eight: two groups, and two GPUs that make no group.
func testKEDAGang(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "keda-gang")
	s.createTemplate("one", s.claimFor(1))
	s.createTemplate("two", s.claimFor(2))
	s.defineLeaderWorkerSets()
	d := s.newGang("gang", s.onGroups(s.podFromTemplate("", "one")), s.onGroups(s.podFromTemplate("", "two")))
	d.waiting(0)
	printed := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal(s.printScaledObject("lws/gang --profile realtime --model gang --max 4"), &printed.Object), "decode what is printed")
	if kind, _, _ := unstructured.NestedString(printed.Object, "spec", "scaleTargetRef", "kind"); kind != "LeaderWorkerSet" {
		t.Errorf("printed for a %q", kind)
	}
	d.scaledObjectOf(fields{"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "gang"}, 0, 60, d.byMica(fields{
		"metric": "prometheus", "target": "LeaderWorkerSet.leaderworkerset.x-k8s.io/gang", "query": d.waitingQuery(), "threshold": "10",
	}))
	d.waiting(500)
	d.expectGroups(2)
	d.expectMetric("20")
	d.expectEventOf("LeaderWorkerSet", "ScaleCapped", "devices for 2, each of 2 pods")
	d.waiting(0)
	d.expectGroups(0)
}

// defineLeaderWorkerSets leaves the kind to who comes later.
func (s *scaleOut) defineLeaderWorkerSets() {
	s.Helper()
	content, err := os.ReadFile("testdata/leaderworkersets.yaml")
	must(s, err, "read the definition of LeaderWorkerSets")
	definition := &unstructured.Unstructured{}
	must(s, yaml.Unmarshal(content, &definition.Object), "decode the definition of LeaderWorkerSets")
	_, err = s.dynamic(definitions).Create(s.Context(), definition, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		must(s, err, "define LeaderWorkerSets")
	}
	eventually(s, startTimeout, "LeaderWorkerSets are served", func(ctx context.Context) error {
		_, err := s.inNamespace(leaderWorkerSets).List(ctx, metav1.ListOptions{})
		return err
	})
}

// inNamespace is dynamic in the scenario's namespace.
func (s *scaleOut) inNamespace(resource schema.GroupVersionResource) dynamic.ResourceInterface {
	return s.dynamicClient().Resource(resource).Namespace(s.namespace)
}

// newGang makes a LeaderWorkerSet without replicas, and plays its controller while the test runs.
func (s *scaleOut) newGang(name string, leader, worker *corev1.Pod) *scaled {
	s.Helper()
	sets := s.inNamespace(leaderWorkerSets)
	_, err := sets.Create(s.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "metadata": fields{"name": name},
		"spec": fields{"replicas": int64(0), "leaderWorkerTemplate": fields{"size": int64(2), "leaderTemplate": s.templateOf(leader), "workerTemplate": s.templateOf(worker)}},
	}}, metav1.CreateOptions{})
	must(s, err, "create LeaderWorkerSet %s", name)
	d := &scaled{s, name}
	ctx, stop := context.WithCancel(context.WithoutCancel(s.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.playController(ctx, sets, []*corev1.Pod{leader, worker})
	}()
	s.Cleanup(func() {
		stop()
		<-ended
	})
	eventually(s, startTimeout, "LeaderWorkerSet "+name+" has a selector of its pods", func(ctx context.Context) error {
		set, err := sets.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if _, found, _ := unstructured.NestedString(set.Object, "status", "hpaPodSelector"); !found {
			return errors.New("its controller has not written a selector yet")
		}
		return nil
	})
	return d
}

func (s *scaleOut) templateOf(pod *corev1.Pod) fields {
	s.Helper()
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.PodTemplateSpec{Spec: pod.Spec})
	must(s, err, "write down a pod template")
	return template
}

// playController makes and deletes pods as many as the set has replicas, until ctx ends. What fails is tried
// again.
func (s *scaled) playController(ctx context.Context, sets dynamic.ResourceInterface, members []*corev1.Pod) {
	ticker := time.NewTicker(500 * time.Millisecond)
	defer ticker.Stop()
	for {
		if err := s.reconcile(ctx, sets, members); err != nil && ctx.Err() == nil {
			s.Logf("play the controller of LeaderWorkerSet %s: %v", s.name, err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

const (
	labelSet    = "leaderworkerset.sigs.k8s.io/name"
	labelGroup  = "leaderworkerset.sigs.k8s.io/group-index"
	labelMember = "leaderworkerset.sigs.k8s.io/worker-index"
)

func (s *scaled) reconcile(ctx context.Context, sets dynamic.ResourceInterface, members []*corev1.Pod) error {
	set, err := sets.Get(ctx, s.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	replicas, _, _ := unstructured.NestedInt64(set.Object, "spec", "replicas")
	pods, err := s.groupPods(ctx)
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for i := range pods {
		there[pods[i].Name] = true
		if group, _ := strconv.Atoi(pods[i].Labels[labelGroup]); int64(group) >= replicas {
			err = errors.Join(err, s.client.CoreV1().Pods(s.namespace).Delete(ctx, pods[i].Name, metav1.DeleteOptions{}))
		}
	}
	for group := range int(replicas) {
		for index, member := range members {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d-%d", s.name, group, index), Labels: map[string]string{
				labelSet: s.name, labelGroup: strconv.Itoa(group), labelMember: strconv.Itoa(index),
			}}, Spec: member.Spec}
			if !there[pod.Name] {
				_, failed := s.client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{})
				err = errors.Join(err, failed)
			}
		}
	}
	status := fields{"replicas": int64(len(pods) / len(members)), "hpaPodSelector": labelSet + "=" + s.name + "," + labelMember + "=0"}
	if was, _, _ := unstructured.NestedMap(set.Object, "status"); fmt.Sprint(was) != fmt.Sprint(status) {
		set.Object["status"] = status
		_, failed := sets.UpdateStatus(ctx, set, metav1.UpdateOptions{})
		err = errors.Join(err, failed)
	}
	return err
}

func (s *scaled) groupPods(ctx context.Context) ([]corev1.Pod, error) {
	pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{LabelSelector: labelSet + "=" + s.name})
	if err != nil {
		return nil, err
	}
	return pods.Items, nil
}

// expectGroups waits until so many are wanted, and all of their pods, and no others, are on nodes.
func (s *scaled) expectGroups(count int) {
	s.Helper()
	sets := s.inNamespace(leaderWorkerSets)
	eventually(s, nodeTimeout, fmt.Sprintf("LeaderWorkerSet %s has %d groups on nodes", s.name, count), func(ctx context.Context) error {
		set, err := sets.Get(ctx, s.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		pods, err := s.groupPods(ctx)
		if err != nil {
			return err
		}
		placed := 0
		for i := range pods {
			if pods[i].Spec.NodeName != "" {
				placed++
			}
		}
		if replicas, _, _ := unstructured.NestedInt64(set.Object, "spec", "replicas"); int(replicas) != count || len(pods) != 2*count || placed != 2*count {
			return errors.Join(fmt.Errorf("%d are wanted, and %d of %d pods are placed", replicas, placed, len(pods)), s.nudgeRefused(ctx))
		}
		return nil
	})
}
