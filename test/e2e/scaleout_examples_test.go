//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/manifest"
)

// TestScaleOutExamples applies the examples that want several nodes, or nodes of their own kind, on
// nodes of kwok with the usual taint of GPU nodes. Their pods are as in the files, apart from a
// selector and a toleration for such nodes. What the controllers of LeaderWorkerSet and JobSet make,
// the tests make in their place.
func TestScaleOutExamples(t *testing.T) {
	t.Run("multi-node", testMultiNodeExample)
	t.Run("training", testTrainingExample)
	t.Run("spot", testSpotExample)
}

// applyExample applies a file with its pods on the groups' nodes, and gives its objects.
func (s *scaleOut) applyExample(name string) []runtime.Object {
	s.Helper()
	s.Cleanup(s.endPods)
	content, err := os.ReadFile(filepath.Join(examplesDirectory, name))
	must(s, err, "read the example")
	objects, err := manifest.Read(content)
	must(s, err, "decode %s", name)
	applier := s.applier()
	for _, object := range objects {
		switch object := object.(type) {
		case *corev1.Pod:
			s.admit(&object.Spec)
		case *appsv1.Deployment:
			s.admit(&object.Spec.Template.Spec)
		case *corev1.PersistentVolumeClaim:
			s.provide(object)
		}
		loose, err := loosen(object)
		must(s, err, "encode an object of %s", name)
		applier.apply(loose, false)
	}
	return objects
}

// admit lets a pod on the nodes of the groups alone.
func (s *scaleOut) admit(pod *corev1.PodSpec) {
	if pod.NodeSelector == nil {
		pod.NodeSelector = map[string]string{}
	}
	pod.NodeSelector[groupSetLabel] = s.groups[0]
	pod.Tolerations = append(pod.Tolerations, corev1.Toleration{Key: "kwok.x-k8s.io/node", Operator: corev1.TolerationOpExists})
}

// addNodes does what an administrator does to a group that no controller scales, before there are pods.
func (s *scaleOut) addNodes(group string, count int) {
	s.Helper()
	must(s, theFleet(s).cloud.SetDesired(s.Context(), group, count), "ask the cloud for nodes of %s", group)
}

// only is the file's object of a kind that is not Kubernetes' own.
func only(t testing.TB, objects []runtime.Object, kind string) *unstructured.Unstructured {
	t.Helper()
	for _, object := range objects {
		if loose, ok := object.(*unstructured.Unstructured); ok && loose.GetKind() == kind {
			return loose
		}
	}
	t.Fatalf("the example has no %s", kind)
	return nil
}

// results are what the pods' claims were given.
func (s *scaleOut) results(pods []corev1.Pod) (all []resourcev1.DeviceRequestAllocationResult) {
	s.Helper()
	for i := range pods {
		claim := s.claimOf(&pods[i])
		if claim.Status.Allocation == nil {
			s.Fatalf("claim %s is not allocated", claim.Name)
		}
		all = append(all, claim.Status.Allocation.Devices.Results...)
	}
	return all
}

// testMultiNodeExample wants a replica over two nodes, all GPUs of each.
func testMultiNodeExample(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "multi-node")
	s.addNodes("multi-node", 2)
	set := only(t, s.applyExample("multi-node/workload.yaml"), "LeaderWorkerSet")
	s.makeGroups(set)
	pods := s.ready("deepseek", 2)
	if pods[0].Name != "deepseek-0" || pods[1].Name != "deepseek-0-1" || pods[0].Spec.NodeName == pods[1].Spec.NodeName {
		t.Errorf("%s runs on %s, %s on %s: want the leader and the worker on two nodes", pods[0].Name, pods[0].Spec.NodeName, pods[1].Name, pods[1].Spec.NodeName)
	}
	if results := s.results(pods); len(results) != 16 {
		t.Errorf("the replica has %d GPUs, want 16", len(results))
	}
	s.expectDisruptionsAllowed("deepseek", 1)
}

// makeGroups makes the StatefulSets that LeaderWorkerSet would: one of leaders, and for each leader
// one of its workers, whose numbers begin at 1 (sigs.k8s.io/lws, docs/concepts).
func (s *scaleOut) makeGroups(set *unstructured.Unstructured) {
	s.Helper()
	group, err := manifest.LeaderWorkerSet(set)
	must(s, err, "read the LeaderWorkerSet")
	create := func(name string, replicas, first int, template corev1.PodTemplateSpec) {
		s.admit(&template.Spec)
		_, err := s.client.AppsV1().StatefulSets(s.namespace).Create(s.Context(), &appsv1.StatefulSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.StatefulSetSpec{
				Replicas: ptr.To(int32(replicas)), ServiceName: set.GetName(), Template: template,
				Ordinals: &appsv1.StatefulSetOrdinals{Start: int32(first)}, PodManagementPolicy: appsv1.ParallelPodManagement,
				Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			},
		}, metav1.CreateOptions{})
		must(s, err, "create StatefulSet %s", name)
	}
	create(set.GetName(), group.Groups, 0, group.Leader)
	for i := range group.Groups {
		create(fmt.Sprintf("%s-%d", set.GetName(), i), group.Size-1, 1, *group.Worker.DeepCopy())
	}
}

func (s *scaleOut) expectDisruptionsAllowed(budget string, want int32) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("PodDisruptionBudget %s allows %d disruptions", budget, want), func(ctx context.Context) error {
		object, err := s.client.PolicyV1().PodDisruptionBudgets(s.namespace).Get(ctx, budget, metav1.GetOptions{})
		if err == nil && object.Status.DisruptionsAllowed != want {
			err = fmt.Errorf("its status is %+v", object.Status)
		}
		return err
	})
}

// testTrainingExample has one of two workers evicted, as before a spot node goes: their Job fails for
// a reason that JobSet does not count, and both come anew, to the same checkpoints.
func testTrainingExample(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "training")
	s.addNodes("training", 2)
	jobs, err := manifest.JobSet(only(t, s.applyExample("training/workload.yaml"), "JobSet"))
	must(t, err, "read the JobSet")
	job := jobs[0]
	s.admit(&job.Spec.Template.Spec)
	create := func() []corev1.Pod {
		_, err := s.client.BatchV1().Jobs(s.namespace).Create(t.Context(), job.DeepCopy(), metav1.CreateOptions{})
		must(t, err, "create Job %s", job.Name)
		pods := s.ready("training", 2)
		if results := s.results(pods); len(results) != 2 {
			t.Errorf("the workers have %d GPUs, want 2", len(results))
		}
		return pods
	}
	before := create()
	s.evict(before[0].Name)
	s.expectFailed(job.Name, batchv1.JobReasonPodFailurePolicy)

	foreground := metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationForeground)}
	must(t, s.client.BatchV1().Jobs(s.namespace).Delete(t.Context(), job.Name, foreground), "delete the Job that has failed")
	eventually(t, goneTimeout, "the Job that has failed is gone", func(ctx context.Context) error {
		list, err := s.client.BatchV1().Jobs(s.namespace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("it is %+v", list.Items[0].Status)
		}
		return err
	})
	for _, pod := range create() {
		if pod.UID == before[0].UID || pod.UID == before[1].UID {
			t.Errorf("pod %s is the one from before", pod.Name)
		}
	}
}

// evict evicts a pod, and says of it what kubelet, for which kwok stands in, does once its containers
// have ended.
func (s *scaleOut) evict(name string) {
	s.Helper()
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name}}
	must(s, s.client.PolicyV1().Evictions(s.namespace).Evict(s.Context(), eviction), "evict pod %s", name)
	patch, err := mergePatch(fields{"status": fields{"phase": corev1.PodFailed}})
	must(s, err, "encode the pod's phase")
	_, err = s.client.CoreV1().Pods(s.namespace).Patch(s.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	must(s, err, "let pod %s fail", name)
}

func (s *scaleOut) expectFailed(job, reason string) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("Job %s has failed: %s", job, reason), func(ctx context.Context) error {
		object, err := s.client.BatchV1().Jobs(s.namespace).Get(ctx, job, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range object.Status.Conditions {
			if condition.Type == batchv1.JobFailed && condition.Status == corev1.ConditionTrue {
				if condition.Reason != reason {
					return fmt.Errorf("%w: it has, because %s: %s", errNever, condition.Reason, condition.Message)
				}
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", object.Status)
	})
}

// testSpotExample has a cloud without spot machines: the groups of the example that are dearer take over.
func testSpotExample(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	content, err := os.ReadFile(filepath.Join(examplesDirectory, "spot", "node-groups.yaml"))
	must(t, err, "read the node groups")
	objects, err := manifest.Read(content)
	must(t, err, "decode the node groups")
	for _, object := range objects {
		s.declareExample(object.(*unstructured.Unstructured))
	}
	s.applyExample("spot/workload.yaml")
	pods := s.ready("spot", 2)
	if results := s.results(pods); len(results) != 2 || results[0].Pool == results[1].Pool {
		t.Errorf("the replicas got %+v, want the GPUs of two nodes", results)
	}
	for group, want := range map[string]int{"l4-spot": 0, "a10g-spot": 0, "l4-on-demand": 2} {
		nodes, err := s.nodesOf(t.Context(), group)
		if must(t, err, "list the nodes of %s", group); len(nodes) != want {
			t.Errorf("group %s has %d nodes, want %d", group, len(nodes), want)
		}
	}
	s.expectGroupCondition("l4-spot", "InBackoff", metav1.ConditionTrue, "")
	s.expectGroupCondition("a10g-spot", "InBackoff", metav1.ConditionTrue, "")
	s.expectDisruptionsAllowed("spot", 1)
}

// declareExample makes a GPUNodeGroup of an example, with the machines that it describes. Spot machines are
// out of stock.
func (s *scaleOut) declareExample(group *unstructured.Unstructured) {
	s.Helper()
	spec := group.Object["spec"].(fields)
	capacity, _, err := unstructured.NestedString(spec, "capacityType")
	must(s, err, "read the capacity type")
	machine, _, err := unstructured.NestedString(spec, "instanceType")
	must(s, err, "read the instance type")
	maximum, _, err := unstructured.NestedInt64(spec, "max")
	must(s, err, "read max")
	s.groups = append(s.groups, group.GetName())
	machines := nodeGroup{Promised: machine, Max: int(maximum), Capacity: capacity, OutOfStock: capacity == "SPOT"}.machines(group.GetName())
	machines.Labels = map[string]string{groupSetLabel: s.groups[0]}
	taints, _, err := unstructured.NestedSlice(spec, "template", "taints")
	must(s, err, "read the taints")
	for _, taint := range taints {
		var real corev1.Taint
		must(s, runtime.DefaultUnstructuredConverter.FromUnstructured(taint.(fields), &real), "read a taint")
		machines.Taints = append(machines.Taints, real)
	}
	spec["provisionTimeout"] = nodeTimeout.String()
	s.declareAs(machines, spec)
}
