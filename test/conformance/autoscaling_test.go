//go:build conformance

package conformance

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"
)

// TestClusterAutoscaling is of KAR-0055: with N nodes in the pool, N+1 pods that take all GPUs of a node each bring one
// more node, which goes again with the pod that brought it.
func TestClusterAutoscaling(t *testing.T) {
	s := requires(t, "cluster_autoscaling")
	if *poolFlag == "" {
		s.skip("name an autoscaled pool of GPU nodes by its label, such as -pool eks.amazonaws.com/nodegroup=gpu")
	}
	t.Parallel()
	terms := s.poolTerms()
	nodes, err := s.nodes(t.Context(), *poolFlag)
	s.must(err, "find the pool")
	gpus, err := s.publishedGPUs(t.Context(), *poolFlag)
	s.must(err, "find the pool's GPUs")
	s.expectFree(nodes)
	perNode := s.perNode(nodes, gpus)
	s.Logf("the pool has %d nodes with %d GPUs each", len(nodes), perNode)

	s.begin()
	s.createTemplate("node", 1, perNode)
	before := nodeNames(nodes)
	pods := make([]string, len(nodes)+1)
	for i := range pods {
		pods[i] = fmt.Sprintf("pod-%d", i)
		s.createPod(pods[i], s.inPool(terms, nodes[0].Spec.Taints))
	}
	s.eventually(startTimeout, "a pod waits for a node", s.expectWaiting)
	on := map[string]string{}
	for _, name := range pods {
		on[name] = s.awaitRunning(name, *scaleFlag).Spec.NodeName
	}
	s.expectPool(len(nodes) + 1)
	s.Logf("the pods run on %v", on)
	for name, node := range on {
		if !before.Has(node) {
			s.deletePods(name)
		}
	}
	s.expectPool(len(nodes))
}

// expectFree wants at least one node, and no claim on any but with admin access, which takes nothing.
func (s *scenario) expectFree(nodes []corev1.Node) {
	s.Helper()
	if len(nodes) == 0 {
		s.Fatalf("the pool %s has no node: set its minimum size to 1 or more", *poolFlag)
	}
	names := nodeNames(nodes)
	claims, err := s.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(s.Context(), metav1.ListOptions{})
	s.must(err, "list claims")
	for _, claim := range claims.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			if result.Driver == s.driver && names.Has(result.Pool) && !ptr.Deref(result.AdminAccess, false) {
				s.Fatalf("claim %s/%s has %s of node %s: the test needs the pool for itself", claim.Namespace, claim.Name, result.Device, result.Pool)
			}
		}
	}
}

// perNode is how many GPUs each node of the pool has.
func (s *scenario) perNode(nodes []corev1.Node, gpus map[string][]gpu) int {
	s.Helper()
	count := len(gpus[nodes[0].Name])
	for i := range nodes {
		switch have := len(gpus[nodes[i].Name]); have {
		case 0:
			s.Fatalf("node %s of the pool %s has no entire GPU that Mica offers: see `kubectl gpu doctor`", nodes[i].Name, *poolFlag)
		case count:
		default:
			s.Fatalf("nodes %s and %s of the pool %s have %d and %d GPUs: choose a pool of equal nodes", nodes[0].Name, nodes[i].Name, *poolFlag, count, have)
		}
	}
	return count
}

// inPool is a pod that takes all GPUs of a node of the pool. It tolerates the taints of a node that is there, and so none that
// a new node has only while it starts.
func (s *scenario) inPool(terms []corev1.NodeSelectorRequirement, taints []corev1.Taint) corev1.PodSpec {
	spec := s.podSpec("node", container{"main", requestOf(0)})
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: terms}}},
	}}
	for _, taint := range taints {
		spec.Tolerations = append(spec.Tolerations, corev1.Toleration{Key: taint.Key, Operator: corev1.TolerationOpExists, Effect: taint.Effect})
	}
	return spec
}

// poolTerms are the labels of -pool, in the form that also says which nodes the autoscaler may add.
func (s *scenario) poolTerms() []corev1.NodeSelectorRequirement {
	s.Helper()
	var terms []corev1.NodeSelectorRequirement
	for pair := range strings.SplitSeq(*poolFlag, ",") {
		key, value, found := strings.Cut(pair, "=")
		if !found || key == "" || value == "" {
			s.Fatalf("-pool %s is no list of KEY=VALUE, such as eks.amazonaws.com/nodegroup=gpu", *poolFlag)
		}
		terms = append(terms, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value}})
	}
	return terms
}

// expectWaiting wants a pod for which there is no place.
func (s *scenario) expectWaiting(ctx context.Context) error {
	pods, err := s.client.CoreV1().Pods(s.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		for _, condition := range pods.Items[i].Status.Conditions {
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable {
				s.Logf("pod %s: %s", pods.Items[i].Name, condition.Message)
				return nil
			}
		}
	}
	return errors.New("all have a node")
}

// expectPool waits until the pool has so many nodes, all ready.
func (s *scenario) expectPool(count int) {
	s.Helper()
	s.eventually(*scaleFlag, fmt.Sprintf("the pool %s has %d nodes", *poolFlag, count), func(ctx context.Context) error {
		nodes, err := s.nodes(ctx, *poolFlag)
		if err != nil {
			return err
		}
		ready := slices.DeleteFunc(slices.Clone(nodes), func(node corev1.Node) bool { return !isReady(&node) })
		if len(nodes) != count || len(ready) != count {
			return fmt.Errorf("it has %d, %d of them ready", len(nodes), len(ready))
		}
		s.Logf("the pool %s has %d nodes: %v", *poolFlag, count, sets.List(nodeNames(nodes)))
		return nil
	})
}

func isReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

func nodeNames(nodes []corev1.Node) sets.Set[string] {
	names := sets.New[string]()
	for i := range nodes {
		names.Insert(nodes[i].Name)
	}
	return names
}
