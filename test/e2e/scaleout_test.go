//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The node groups of these tests have nodes of kwok, without containers: the tests
// check which pod gets which node, and how many nodes there are.

// TestScaleOutByPlaceholder goes from no node to one for a claim that nothing satisfies, and
// leaves the second node to Cluster Autoscaler, which knows the first by then. Under a budget, nothing
// is left to it.
func TestScaleOutByPlaceholder(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "placeholder")
	s.createTemplate("all", s.claimFor(8, productIs("NVIDIA H200")))
	s.createPods("first", 1, "all")
	s.expectPlaced("first-0")
	s.expectNodes("placeholder", 1)
	s.expectNoStartupTaint("placeholder")
	s.expectPlaceholders("placeholder", 0)
	s.expectGroup("placeholder", "template.source", "LiveNode")
	made := s.placeholdersMade("placeholder")
	if made != 1 {
		t.Errorf("%d placeholders were made for one node", made)
	}

	s.awaitLiveTemplate("placeholder")
	s.createPods("second", 1, "all")
	s.expectPlaced("second-0")
	s.expectNodes("placeholder", 2)
	s.expectEvent("Pod", "second-0", "cluster-autoscaler", "TriggeredScaleUp", "1->2 (max: 5)")
	if now := s.placeholdersMade("placeholder"); now != made {
		t.Errorf("a placeholder was made though Cluster Autoscaler had acted: there were %d, are %d", made, now)
	}

	s.createBudget("e2e-bound", fields{"namespaces": []any{s.namespace}, "gpus": int64(24)})
	s.expectStatus(gpuBudgets, "e2e-bound", "gpus", int64(16))
	s.expectKeptFromAutoscaler(s.onGroups(s.podFromTemplate("third-9", "all")))
	s.createPods("third", 3, "all")
	s.expectStatus(gpuBudgets, "e2e-bound", "held", int64(2))
	s.expectNodes("placeholder", 3)
	s.waitingPod("GPUOverBudget", "budget e2e-bound allows 24 GPUs")
	s.setBudget("e2e-bound", 32)
	s.expectNodes("placeholder", 4)
	s.expectStatus(gpuBudgets, "e2e-bound", "held", int64(1))
}

// TestScaleOutCountsNodes expects exactly as many nodes as the pods fill.
func TestScaleOutCountsNodes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		group string
		pods  int
		claim func(*scaleOut) resourcev1.ResourceClaimSpec
		nodes int
	}{
		{"nine", 9, func(s *scaleOut) resourcev1.ResourceClaimSpec { return s.claimFor(1) }, 2},
		{"partitions", 30, func(s *scaleOut) resourcev1.ResourceClaimSpec { return s.partitionsFor(1, s.is("profile", "1g.18gb")) }, 1},
	} {
		t.Run(test.group, func(t *testing.T) {
			t.Parallel()
			s := newScaleOut(t, test.group)
			s.createTemplate("one", test.claim(s))
			all := s.createPods("pod", test.pods, "one")
			s.expectPlaced(all...)
			s.expectNodes(test.group, test.nodes)
			s.expectPlaceholders(test.group, 0)
			// Where pods come so slowly that the first node is there before the last pod, the
			// autoscaler brings the next node by itself.
			if made := s.placeholdersMade(test.group); made < 1 || made > test.nodes {
				t.Errorf("%d placeholders were made for %d nodes", made, test.nodes)
			}
		})
	}
}

// TestScaleOutOfWhatNobodyHas scales nothing, and says why with the numbers.
func TestScaleOutOfWhatNobodyHas(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "too-small")
	s.createTemplate("large", s.claimFor(1, `device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("24Gi")) >= 0`))
	s.createPods("pod", 1, "large")
	// An L4's 24 GB are 23034Mi: the trap is named, and what it has.
	s.expectEvent("Pod", "pod-0", "mica-controller", "", "23034Mi")
	s.expectCondition("pod-0", corev1.ConditionFalse, "too-small")
	pod, err := s.pod(s.Context(), "pod-0")
	must(t, err, "get pod-0")
	ofClaim, _ := gpuCommand(t, "explain", "claim/"+s.claimOf(pod).Name, "--namespace", s.namespace)
	for _, text := range []string{s.explain("pod-0"), ofClaim} {
		for _, want := range []string{"too-small", "24Gi", "23034Mi"} {
			if !strings.Contains(text, want) {
				t.Errorf("kubectl gpu explain does not say %s:\n%s", want, text)
			}
		}
	}
	s.expectNodes("too-small", 0)
	if made := s.placeholdersMade("too-small"); made != 0 {
		t.Errorf("%d placeholders were made", made)
	}
}

// TestScaleOutStopsAtAWrongTemplate asks for what the catalogue promises and the machines do
// not have.
func TestScaleOutStopsAtAWrongTemplate(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "wrong")
	s.createTemplate("one", s.claimFor(1, productIs("NVIDIA H200")))
	s.createPods("pod", 1, "one")
	s.expectGroupCondition("wrong", "TemplateValid", metav1.ConditionFalse, "NVIDIA L4")
	s.expectEvent("GPUNodeGroup", "wrong", "mica-controller", "", "NVIDIA L4")
	s.expectPlaceholders("wrong", 0)
	s.expectCondition("pod-0", corev1.ConditionFalse, "wrong")
	s.expectNodes("wrong", 1)
	if made := s.placeholdersMade("wrong"); made != 1 {
		t.Errorf("%d placeholders were made", made)
	}
}

// TestScaleOutByEKS raises a node group's size at EKS, and ends the node that nothing needs any more.
func TestScaleOutByEKS(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "direct")
	s.startEKS("direct")
	s.createTemplate("one", s.claimFor(1))
	all := s.createPods("pod", 9, "one")
	s.expectPlaced(all...)
	s.expectNodes("direct", 2)
	if desired := s.eksDesired("direct"); desired != 2 {
		t.Errorf("EKS was asked for %d nodes, want 2", desired)
	}
	s.expectPlaceholders("direct", 0)
	// What protects a fresh node goes with the first claim on it, but not where all is in use.
	s.expectProtected("direct", "", "use")
	s.expectGroupCondition("direct", "ScaleIn", metav1.ConditionTrue, "5s")
	last, err := s.pod(t.Context(), all[len(all)-1])
	must(t, err, "read the last pod")
	emptied := last.Spec.NodeName
	for _, name := range all {
		pod, err := s.pod(t.Context(), name)
		must(t, err, "read pod %s", name)
		if pod.Spec.NodeName == emptied {
			s.deletePod(name)
		}
	}
	// The controller cordons it, and waits for a minute for pods that were on their way.
	eventually(t, time.Minute+nodeTimeout, "the empty node is gone", func(ctx context.Context) error {
		_, err := s.client.CoreV1().Nodes().Get(ctx, emptied, metav1.GetOptions{})
		if err == nil {
			return errors.New("it is still there")
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	s.expectNodes("direct", 1)
	if desired := s.eksDesired("direct"); desired != 1 {
		t.Errorf("EKS wants %d nodes after one has ended, want 1", desired)
	}
}

// TestScaleOutIsOnlyAdvised says what is needed and does nothing; once an administrator adds the
// node, the pod is placed.
func TestScaleOutIsOnlyAdvised(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "observed")
	s.createTemplate("one", s.claimFor(1))
	s.createPods("pod", 1, "one")
	s.expectCondition("pod-0", corev1.ConditionFalse, "observed")
	s.expectGroup("observed", "demand", int64(1))
	s.expectNodes("observed", 0)
	if made := s.placeholdersMade("observed"); made != 0 {
		t.Errorf("%d placeholders were made", made)
	}
	s.addNode("observed")
	s.expectPlaced("pod-0")
	s.expectNodes("observed", 1)
	// What its node had is known when the group has none any more.
	s.deletePod("pod-0")
	must(t, theFleet(t).cloud.SetDesired(t.Context(), "observed", 0), "take the node away")
	eventually(t, startTimeout, "the node is gone", func(ctx context.Context) error { return s.expectNodesGone(ctx, "observed") })
	s.expectGroup("observed", "template.source", "Learned")
}

// TestScaleOutSurvivesItsController kills the controller twice while nodes come; a test of pkg/scaleout/control
// kills it at each write. It runs alone: the others would wait for the next leader as often.
func TestScaleOutSurvivesItsController(t *testing.T) {
	s := newScaleOut(t, "killed")
	s.createTemplate("one", s.claimFor(1))
	all := s.createPods("before", 5, "one")
	s.killLeaders(1)
	all = append(all, s.createPods("between", 5, "one")...)
	s.killLeaders(1)
	all = append(all, s.createPods("after", 5, "one")...)
	s.expectPlaced(all...)
	s.expectNodes("killed", 2)
	s.expectPlaceholders("killed", 0)
}

// TestHeadroomIsKeptUsedAndRefilled keeps a device free, gives it to a pod, and frees another.
func TestHeadroomIsKeptUsedAndRefilled(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t, "headroom")
	s.createHeadroom("e2e-headroom", fields{
		"deviceClassName": s.driver, "devices": int64(1), "nodeGroups": []any{"headroom"},
		"selectors": []any{productIs("NVIDIA L4")},
	})
	s.expectNodes("headroom", 1)
	s.expectHeadroom("e2e-headroom", 1)
	s.expectProtected("headroom", "headroom")
	s.createTemplate("one", s.claimFor(1, productIs("NVIDIA L4")))
	s.createPods("pod", 1, "one")
	s.expectPlaced("pod-0")
	// A g6.xlarge has one GPU: what was kept is used, and another node comes.
	s.expectNodes("headroom", 2)
	s.expectHeadroom("e2e-headroom", 1)
}

func productIs(product string) string {
	return fmt.Sprintf("device.attributes['gpu.nvidia.com'].productName == '%s'", product)
}

// scaleOut is a scenario on node groups of its own.
type scaleOut struct {
	*scenario
	groups []string
	// logged is set once the state of the failed test was logged.
	logged bool
}

// nodeTimeout bounds the way from a pending pod to a node with slices, with delays that groups are given,
// and with scans of the autoscaler: one group grows in each, and a test beside may have the next ones.
var nodeTimeout = 4*time.Minute + autoscalerDelay()

// groupSetLabel keeps the pods of a test on the nodes of its groups.
const groupSetLabel = "e2e.mica.gpu/groups"

// newScaleOut declares the groups for the time of the test.
func newScaleOut(t testing.TB, groups ...string) *scaleOut {
	t.Helper()
	s := &scaleOut{scenario: newScenario(t, 0), groups: groups}
	theFleet(t)
	t.Cleanup(s.logGroups)
	for _, group := range groups {
		s.declare(group)
	}
	return s
}

// onGroups keeps a pod on the test's nodes, and lets it on them.
func (s *scaleOut) onGroups(pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{groupSetLabel: s.groups[0]}
	pod.Spec.Tolerations = []corev1.Toleration{{Key: "kwok.x-k8s.io/node", Operator: corev1.TolerationOpExists}}
	pod.Spec.TerminationGracePeriodSeconds = ptr.To(int64(0))
	return pod
}

// createPods makes pods with a claim each and gives their names.
func (s *scaleOut) createPods(prefix string, count int, template string) []string {
	s.Helper()
	all := names(prefix, count)
	for _, name := range all {
		s.createPod(s.onGroups(s.podFromTemplate(name, template)))
	}
	return all
}

// expectPlaced waits until each pod is on a node of the groups.
func (s *scaleOut) expectPlaced(pods ...string) {
	s.Helper()
	for _, name := range pods {
		eventually(s, nodeTimeout, "pod "+name+" is placed", func(ctx context.Context) error {
			pod, err := s.pod(ctx, name)
			if err == nil && pod.Spec.NodeName == "" {
				err = errors.New(summary(pod))
			}
			return err
		})
	}
}

func (s *scaleOut) nodesOf(ctx context.Context, group string) ([]corev1.Node, error) {
	list, err := s.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: nodegroupLabel + "=" + group})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// expectNodes waits until a group has so many nodes, and that it has no more after a few
// scans of the autoscaler.
func (s *scaleOut) expectNodes(group string, count int) {
	s.Helper()
	eventually(s, nodeTimeout, fmt.Sprintf("group %s has %d nodes", group, count), func(ctx context.Context) error {
		nodes, err := s.nodesOf(ctx, group)
		switch {
		case err != nil:
			return err
		case len(nodes) > count:
			return fmt.Errorf("%w: it has %d", errNever, len(nodes))
		case len(nodes) < count:
			return fmt.Errorf("it has %d", len(nodes))
		}
		return nil
	})
	s.awaitScans(2)
	nodes, err := s.nodesOf(s.Context(), group)
	must(s, err, "list the nodes of %s", group)
	if len(nodes) != count {
		s.Errorf("group %s has %d nodes after two more scans, want %d", group, len(nodes), count)
	}
}

func (s *scaleOut) expectNoStartupTaint(group string) {
	s.Helper()
	nodes, err := s.nodesOf(s.Context(), group)
	must(s, err, "list the nodes of %s", group)
	for _, node := range nodes {
		if slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return strings.HasPrefix(taint.Key, "startup-taint.") }) {
			s.Errorf("node %s has taints %v", node.Name, node.Spec.Taints)
		}
	}
}
