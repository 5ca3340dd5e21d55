package policy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

func TestEachNodeWritesItsOwnEntryAndTheSum(t *testing.T) {
	var status v1alpha1.GPUPolicyStatus
	report := func(node, message string, news bool) {
		t.Helper()
		updated, got := Report(status, node, &v1alpha1.NodeStatus{ObservedGeneration: 3, Message: message})
		if got != news {
			t.Errorf("%s: news: %t", node, got)
		}
		status = updated
	}
	report("b", "", true)
	report("a", "", true)
	report("a", "", false)
	ready := func() *metav1.Condition { return meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady) }
	if status.Applied != 2 || status.Refused != 0 || ready().Status != metav1.ConditionTrue || ready().ObservedGeneration != 3 {
		t.Errorf("got %+v", status)
	}
	report("c", "it is too old", true)
	if status.Applied != 2 || status.Refused != 1 || ready().Status != metav1.ConditionFalse || !strings.Contains(ready().Message, "1 of 3 nodes") || !strings.Contains(ready().Message, "c: it is too old") {
		t.Errorf("got %+v", status)
	}
	if names := []string{status.Nodes[0].Name, status.Nodes[1].Name, status.Nodes[2].Name}; !slices.IsSorted(names) {
		t.Errorf("got %q", names)
	}
	before := status.DeepCopy()
	updated, news := Report(status, "c", nil)
	if !news || len(updated.Nodes) != 2 || updated.Refused != 0 || meta.FindStatusCondition(updated.Conditions, v1alpha1.ConditionReady).Status != metav1.ConditionTrue {
		t.Errorf("got %+v", updated)
	}
	if len(status.Nodes) != len(before.Nodes) || status.Nodes[2] != before.Nodes[2] {
		t.Error("what was given is changed")
	}
	if _, news := Report(updated, "c", nil); news {
		t.Error("a node that is not there is removed")
	}
}

func TestAStatusHasLimits(t *testing.T) {
	var status v1alpha1.GPUPolicyStatus
	for i := range v1alpha1.MaxNodeStatuses + 1 {
		status, _ = Report(status, fmt.Sprintf("node-%04d", i), &v1alpha1.NodeStatus{Message: strings.Repeat("ä", 600)})
	}
	if len(status.Nodes) != v1alpha1.MaxNodeStatuses {
		t.Errorf("got %d nodes", len(status.Nodes))
	}
	if n := utf8.RuneCountInString(status.Nodes[0].Message); n != v1alpha1.MaxMessageLength {
		t.Errorf("got a message of %d characters", n)
	}
	if n := len(status.Conditions[0].Message); n > 32768 {
		t.Errorf("the condition's message has %d bytes", n)
	}
}

// A refusal is what a status is read for.
func TestARefusalHasRoomInAFullStatus(t *testing.T) {
	var status v1alpha1.GPUPolicyStatus
	for i := range v1alpha1.MaxNodeStatuses {
		status, _ = Report(status, fmt.Sprintf("node-%04d", i), &v1alpha1.NodeStatus{})
	}
	if _, news := Report(status, "zone", &v1alpha1.NodeStatus{}); news {
		t.Error("a node that does what the policy says takes the place of another")
	}
	for i, node := range []string{"zone", "a", "node-0050a"} {
		var news bool
		if status, news = Report(status, node, &v1alpha1.NodeStatus{Message: "it is too old"}); !news || int(status.Refused) != i+1 || len(status.Nodes) != v1alpha1.MaxNodeStatuses {
			t.Fatalf("got %d refusals of %d nodes", status.Refused, len(status.Nodes))
		}
		if !slices.IsSortedFunc(status.Nodes, func(a, b v1alpha1.NodeStatus) int { return strings.Compare(a.Name, b.Name) }) {
			t.Errorf("%s is not in its place", node)
		}
	}
	for i := range status.Nodes {
		status.Nodes[i].Message = "it is too old"
	}
	if _, news := Report(status, "b", &v1alpha1.NodeStatus{Message: "it is too old"}); news {
		t.Error("one refusal takes the place of another")
	}
}
