//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fleet/cloud"
)

var (
	gpuNodeGroups = schema.GroupVersionResource{Group: "mica.gpu", Version: "v1alpha1", Resource: "gpunodegroups"}
	gpuBudgets    = schema.GroupVersionResource{Group: "mica.gpu", Version: "v1alpha1", Resource: "gpubudgets"}
	gpuHeadrooms  = schema.GroupVersionResource{Group: "mica.gpu", Version: "v1alpha1", Resource: "gpuheadrooms"}
)

const (
	nodegroupLabel      = "eks.amazonaws.com/nodegroup"
	placeholderLabel    = "mica.gpu/node-group"
	protectedAnnotation = "mica.gpu/protected-for"
	controllerLease     = "mica-controller"
	controllerSelector  = "app.kubernetes.io/component=controller,app.kubernetes.io/name=mica"
)

func (s *scaleOut) dynamic(resource schema.GroupVersionResource) dynamic.ResourceInterface {
	return s.dynamicClient().Resource(resource)
}

// declare makes the GPUNodeGroup of a group for the time of the test.
func (s *scaleOut) declare(name string) {
	s.Helper()
	group := groupOf(s, name)
	spec := fields{
		"provider":         fields{"eks": fields{"nodegroup": name, "cluster": "e2e"}},
		"instanceType":     group.Promised,
		"max":              int64(group.Max),
		"pairing":          group.Pairing,
		"provisionTimeout": nodeTimeout.String(),
	}
	if group.Timeout > 0 {
		spec["provisionTimeout"] = (group.Timeout + autoscalerDelay()).String()
	}
	if group.Capacity != "" {
		spec["capacityType"] = group.Capacity
	}
	if group.Price != "" {
		spec["pricePerHour"] = group.Price
	}
	if group.ScaleInAfter != "" {
		spec["scaleInAfter"] = group.ScaleInAfter
	}
	s.declareAs(group.machines(name), spec)
}

// declareAs makes a GPUNodeGroup with that specification, in which the template is what its machines have.
func (s *scaleOut) declareAs(machines cloud.Group, spec fields) {
	s.Helper()
	taints, allocatable := []any{}, fields{}
	for _, taint := range machines.Taints {
		if !strings.HasPrefix(taint.Key, "startup-taint.") {
			taints = append(taints, fields{"key": taint.Key, "value": taint.Value, "effect": string(taint.Effect)})
		}
	}
	for name, quantity := range machines.Allocatable {
		allocatable[string(name)] = quantity.String()
	}
	spec["template"] = fields{"labels": fields{groupSetLabel: machines.Labels[groupSetLabel]}, "taints": taints, "allocatable": allocatable}
	must(s, theFleet(s).cloud.Put(s.Context(), machines), "set up group %s", machines.Name)
	_, err := s.dynamic(gpuNodeGroups).Create(s.Context(), groupWith(machines.Name, spec), metav1.CreateOptions{})
	must(s, err, "declare group %s", machines.Name)
	s.Cleanup(func() { s.undeclare(machines.Name) })
}

// undeclare removes the nodes once their pods are gone, and then the group, which the
// controller would discover again while it had nodes. Nodes are Ready for as long as they are
// there, as those of real machines: who learns from nodes that are Ready for a minute learns
// from no other.
func (s *scaleOut) undeclare(name string) {
	s.logGroups()
	if unready := theFleet(s).unready.of(name); len(unready) > 0 {
		s.Errorf("nodes %v of group %s were Ready and then were not", unready, name)
	}
	ctx, cancel := context.WithTimeout(context.Background(), goneTimeout+retryTimeout)
	defer cancel()
	err := errors.Join(
		until(ctx, s.deletePods),
		theFleet(s).cloud.Remove(ctx, name),
		until(ctx, func(ctx context.Context) error { return s.expectNodesGone(ctx, name) }),
	)
	if deletion := s.dynamic(gpuNodeGroups).Delete(ctx, name, metav1.DeleteOptions{}); !apierrors.IsNotFound(deletion) {
		err = errors.Join(err, deletion)
	}
	if err != nil {
		s.Errorf("remove group %s: %v", name, err)
	}
}

func (s *scaleOut) expectNodesGone(ctx context.Context, group string) error {
	nodes, err := s.nodesOf(ctx, group)
	if err == nil && len(nodes) > 0 {
		err = fmt.Errorf("%d nodes are still there, the first is %s", len(nodes), nodes[0].Name)
	}
	return err
}

// placeholdersMade is how many placeholders a group has ever had.
func (s *scaleOut) placeholdersMade(group string) int {
	return len(theFleet(s).placeholders.of(group))
}

// expectPlaceholders waits until there are so many placeholders of a group.
func (s *scaleOut) expectPlaceholders(group string, count int) {
	s.Helper()
	eventually(s, startTimeout, fmt.Sprintf("group %s has %d placeholders", group, count), func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{LabelSelector: placeholderLabel + "=" + group})
		if err == nil && len(pods.Items) != count {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}

// expectEvent waits for an Event of a source, with any reason where it is empty.
func (s *scaleOut) expectEvent(kind, name, source, reason, text string) {
	s.Helper()
	namespace := s.namespace
	if kind != "Pod" {
		namespace = metav1.NamespaceDefault
	}
	eventually(s, nodeTimeout, fmt.Sprintf("%s %s has an Event %s with %q", kind, name, reason, text), func(ctx context.Context) error {
		events, err := s.client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var others []string
		for _, event := range events.Items {
			by := event.Source.Component == source || event.ReportingController == source
			if by && (reason == "" || event.Reason == reason) && strings.Contains(event.Message, text) {
				return nil
			}
			others = append(others, event.Reason+": "+event.Message)
		}
		return fmt.Errorf("there are %q", others)
	})
}

// expectCondition waits for the pod's condition about its scale-up.
func (s *scaleOut) expectCondition(name string, status corev1.ConditionStatus, text string) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("pod %s says of %s why it waits", name, text), func(ctx context.Context) error {
		pod, err := s.pod(ctx, name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == "mica.gpu/ScaleUp" })
		if i < 0 {
			return errors.New("it says nothing")
		}
		if c := pod.Status.Conditions[i]; c.Status != status || !strings.Contains(c.Message, text) {
			return fmt.Errorf("it says %s, %s: %s", c.Status, c.Reason, c.Message)
		}
		return nil
	})
}

// expectGroup waits for a value of a group's status, at a path of names.
func (s *scaleOut) expectGroup(group, path string, want any) {
	s.Helper()
	s.expectStatus(gpuNodeGroups, group, path, want)
}

func (s *scaleOut) expectStatus(resource schema.GroupVersionResource, name, path string, want any) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("%s %s has %s %v", resource.Resource, name, path, want), func(ctx context.Context) error {
		object, err := s.dynamic(resource).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, _, err := unstructured.NestedFieldNoCopy(object.Object, append([]string{"status"}, strings.Split(path, ".")...)...)
		if err == nil && got != want {
			err = fmt.Errorf("it is %v", got)
		}
		return err
	})
}

func (s *scaleOut) expectGroupCondition(group, kind string, status metav1.ConditionStatus, text string) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("group %s has %s %s", group, kind, status), func(ctx context.Context) error {
		object, err := s.dynamic(gpuNodeGroups).Get(ctx, group, metav1.GetOptions{})
		if err != nil {
			return err
		}
		conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, condition := range conditions {
			c, _ := condition.(fields)
			if c["type"] == kind && c["status"] == string(status) && strings.Contains(fmt.Sprint(c["message"]), text) {
				return nil
			}
		}
		return fmt.Errorf("it has %v", conditions)
	})
}

// explain is what a user reads.
func (s *scaleOut) explain(pod string) string {
	s.Helper()
	out, notes := gpuCommand(s, "explain", "pod/"+pod, "--namespace", s.namespace)
	return out + notes
}

// expectProtected waits until the nodes of a group are kept from being scaled down for these
// reasons, one a node in any order; empty: one is not.
func (s *scaleOut) expectProtected(group string, reasons ...string) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("nodes of %s are protected for %q", group, reasons), func(ctx context.Context) error {
		nodes, err := s.nodesOf(ctx, group)
		if err != nil {
			return err
		}
		var got []string
		for _, node := range nodes {
			reason := node.Annotations[protectedAnnotation]
			if disabled := node.Annotations["cluster-autoscaler.kubernetes.io/scale-down-disabled"] == "true"; disabled != (reason != "") {
				return fmt.Errorf("node %s has annotations %v", node.Name, node.Annotations)
			}
			got = append(got, reason)
		}
		if slices.Sort(got); !slices.Equal(got, reasons) {
			return fmt.Errorf("they are protected for %q", got)
		}
		return nil
	})
}

// killLeaders kills the controller that works, count times, each after another number of
// renewals of its lease, so that it is at another point of its work.
func (s *scaleOut) killLeaders(count int) {
	s.Helper()
	killed := ""
	for renewals := range count {
		killed = s.awaitLeader(killed, renewals)
		err := s.client.CoreV1().Pods(s.plugin.namespace).Delete(s.Context(), killed, metav1.DeleteOptions{GracePeriodSeconds: ptr.To(int64(0))})
		must(s, err, "kill controller %s", killed)
	}
}

// awaitLeader waits until another pod than the one before leads, and has renewed its lease so
// many times.
func (s *scaleOut) awaitLeader(before string, renewals int) (leader string) {
	s.Helper()
	seen := map[time.Time]bool{}
	eventually(s, startTimeout, fmt.Sprintf("another controller than %q leads", before), func(ctx context.Context) error {
		lease, err := s.client.CoordinationV1().Leases(s.plugin.namespace).Get(ctx, controllerLease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		// The holder is the pod's name and something random.
		leader, _, _ = strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_")
		if leader == "" || leader == before || lease.Spec.RenewTime == nil {
			return fmt.Errorf("the lease is held by %q", leader)
		}
		// A pod that was killed holds the lease until it expires.
		if _, err := s.client.CoreV1().Pods(s.plugin.namespace).Get(ctx, leader, metav1.GetOptions{}); err != nil {
			return err
		}
		if seen[lease.Spec.RenewTime.Time] = true; len(seen) <= renewals {
			return fmt.Errorf("pod %s has renewed its lease %d times", leader, len(seen)-1)
		}
		return nil
	})
	return leader
}

func (s *scaleOut) createHeadroom(name string, spec fields) {
	s.Helper()
	s.create(gpuHeadrooms, "GPUHeadroom", name, spec)
}

func (s *scaleOut) createBudget(name string, spec fields) {
	s.Helper()
	s.create(gpuBudgets, "GPUBudget", name, spec)
}

// create creates an object of no namespace for the time of the test.
func (s *scaleOut) create(resource schema.GroupVersionResource, kind, name string, spec fields) {
	s.Helper()
	_, err := s.dynamic(resource).Create(s.Context(), &unstructured.Unstructured{Object: fields{
		"apiVersion": "mica.gpu/v1alpha1", "kind": kind,
		"metadata": fields{"name": name, "labels": fields{testLabel: ""}}, "spec": spec,
	}}, metav1.CreateOptions{})
	must(s, err, "create %s %s", kind, name)
	s.Cleanup(func() {
		if err := s.dynamic(resource).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			s.Errorf("delete %s %s: %v", kind, name, err)
		}
	})
}

func (s *scaleOut) setBudget(name string, gpus int) {
	s.Helper()
	patch := fmt.Sprintf(`{"spec": {"gpus": %d}}`, gpus)
	_, err := s.dynamic(gpuBudgets).Patch(s.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	must(s, err, "set GPUBudget %s to %d GPUs", name, gpus)
}

// expectKeptFromAutoscaler waits until such a pod would be annotated as it is made.
func (s *scaleOut) expectKeptFromAutoscaler(pod *corev1.Pod) {
	s.Helper()
	eventually(s, startTimeout, "the API server keeps pods from Cluster Autoscaler", func(ctx context.Context) error {
		made, err := s.client.CoreV1().Pods(s.namespace).Create(ctx, pod, metav1.CreateOptions{DryRun: dryRun})
		if err == nil && made.Annotations[scaleUpDelay] == "" {
			err = fmt.Errorf("it has the annotations %v", made.Annotations)
		}
		return err
	})
}

// waitingPod waits for a pod without a node whose condition about scale-up has a reason and a text. A
// pod that has got a node keeps its earlier condition.
func (s *scaleOut) waitingPod(reason, text string) (name string) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("a pod waits because of %s", reason), func(ctx context.Context) error {
		pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.Conditions {
				if pod.Spec.NodeName == "" && c.Type == "mica.gpu/ScaleUp" && c.Reason == reason && strings.Contains(c.Message, text) {
					name = pod.Name
					return nil
				}
			}
		}
		return errors.New("none does")
	})
	return name
}

// expectHeadroom waits until so many devices are kept free.
func (s *scaleOut) expectHeadroom(name string, free int64) {
	s.Helper()
	s.expectStatus(gpuHeadrooms, name, "free", free)
	s.expectStatus(gpuHeadrooms, name, "demanded", int64(0))
}

// awaitScans waits until the autoscaler has looked again, so many times.
func (s *scaleOut) awaitScans(count int) {
	s.Helper()
	seen := map[string]bool{}
	eventually(s, nodeTimeout, fmt.Sprintf("the autoscaler has scanned %d times", count), func(ctx context.Context) error {
		status, err := s.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "cluster-autoscaler-status", metav1.GetOptions{})
		if err != nil {
			return err
		}
		seen[status.ResourceVersion] = true
		if len(seen) <= count {
			return fmt.Errorf("it has %d times", len(seen)-1)
		}
		return nil
	})
}

// logGroups writes what a reader of a failed test would ask for, as long as it is there.
func (s *scaleOut) logGroups() {
	if !s.Failed() || s.logged {
		return
	}
	s.logged = true
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for _, group := range s.groups {
		object, err := s.dynamic(gpuNodeGroups).Get(ctx, group, metav1.GetOptions{})
		if err != nil {
			continue
		}
		unstructured.RemoveNestedField(object.Object, "status", "template", "data")
		s.Logf("group %s: %v", group, object.Object["status"])
		nodes, err := s.nodesOf(ctx, group)
		for _, node := range nodes {
			s.Logf("node %s of %s (%v): taints %v, annotations %v", node.Name, group, err, node.Spec.Taints, node.Annotations)
		}
	}
	pods, err := s.client.CoreV1().Pods(s.plugin.namespace).List(ctx, metav1.ListOptions{LabelSelector: controllerSelector})
	if err != nil {
		return
	}
	for _, pod := range pods.Items {
		log, err := s.podLog(ctx, pod.Namespace, pod.Name, &corev1.PodLogOptions{TailLines: ptr.To(int64(80))})
		s.Logf("controller %s: %s; its last log lines (%v):\n%s", pod.Name, summary(&pod), err, log)
	}
	own, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, pod := range own.Items {
			s.Logf("pod %s on node %q: %s", pod.Name, pod.Spec.NodeName, summary(&pod))
		}
	}
	events, err := s.client.CoreV1().Events(s.namespace).List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, event := range events.Items {
			s.Logf("event %s of %s/%s: %s", event.Reason, event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Message)
		}
	}
}

const (
	scaleUpDelay = "cluster-autoscaler.kubernetes.io/pod-scale-up-delay"
	delayBefore  = "mica.gpu/scale-up-delay-before"
)

// expectDelay waits until what keeps a pod from Cluster Autoscaler is as it should be.
func (s *scenario) expectDelay(name string, right func(*corev1.Pod) bool) {
	s.Helper()
	eventually(s, startTimeout, "pod "+name+" is kept from Cluster Autoscaler, or left to it", func(ctx context.Context) error {
		pod, err := s.pod(ctx, name)
		if err == nil && !right(pod) {
			err = fmt.Errorf("it has the annotations %v", pod.Annotations)
		}
		return err
	})
}
