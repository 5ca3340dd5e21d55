package verdict

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/policy"
)

func named(name string, generation int64, labels map[string]string) *v1alpha1.GPUPolicy {
	p := &v1alpha1.GPUPolicy{}
	p.Name, p.Generation, p.UID = name, generation, "uid"
	p.Spec.NodeSelector.MatchLabels = labels
	p.Spec.Priority = int32(len(labels))
	return p
}

func TestNodesCountForThePolicyThatAppliesToThem(t *testing.T) {
	train := map[string]string{"pool": "train"}
	all, special, invalid := named("all", 3, nil), named("train", 1, train), named("invalid", 1, nil)
	invalid.Spec.NodeSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Contains"}}
	again := all.DeepCopy()
	again.UID = "another"
	older := all.DeepCopy()
	older.Generation--
	sick := errors.New("it is too old")
	statuses := statusesOf([]*v1alpha1.GPUPolicy{all, special, invalid}, []nodeReport{
		{node: "g", policy: policy.Verdict(all, nil)},
		{node: "f", policy: policy.Verdict(all, sick)},
		{node: "e", policy: policy.Verdict(older, nil)},
		{node: "d"},
		{node: "c", policy: policy.Verdict(again, nil)},              // of a policy that was deleted and made again
		{node: "b", labels: train, policy: policy.Verdict(all, nil)}, // its labels have changed
		{node: "a", labels: train, policy: policy.Verdict(special, nil)},
	})
	for name, want := range map[string]v1alpha1.GPUPolicyStatus{
		"all":     {ObservedGeneration: 3, Applied: 1, Pending: 3, Refused: 1, Refusals: []v1alpha1.Refusal{{Node: "f", Message: "it is too old"}}},
		"train":   {ObservedGeneration: 1, Applied: 1, Pending: 1},
		"invalid": {ObservedGeneration: 1},
	} {
		got := statuses[name]
		got.Conditions = nil
		if !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	for name, want := range map[string]string{
		"all":     "False Refused 1 of 5 nodes cannot apply the policy and keep their previous offer: f: it is too old",
		"train":   "Unknown Pending 1 of 2 nodes have not reported on generation 1 yet",
		"invalid": "False Invalid GPUPolicy invalid, spec.nodeSelector: ",
	} {
		c := meta.FindStatusCondition(statuses[name].Conditions, v1alpha1.ConditionReady)
		if got := fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message); !strings.HasPrefix(got, want) || c.ObservedGeneration != statuses[name].ObservedGeneration {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestTheSameCountsGiveTheSameStatus(t *testing.T) {
	p := named("all", 1, nil)
	nodes := []nodeReport{{node: "a", policy: policy.Verdict(p, nil)}, {node: "b", policy: policy.Verdict(p, nil)}}
	p.Status = statusesOf([]*v1alpha1.GPUPolicy{p}, nodes)[p.Name]
	if c := p.Status.Conditions[0]; c.Status != metav1.ConditionTrue || c.Message != "2 nodes have applied the policy" {
		t.Errorf("got %+v", c)
	}
	if again := statusesOf([]*v1alpha1.GPUPolicy{p}, nodes)[p.Name]; !equality.Semantic.DeepEqual(again, p.Status) {
		t.Errorf("got %+v, had %+v", again, p.Status)
	}
}

// Nodes with withheld GPUs count as withheld, even if they have applied the policy.
func TestNodesThatOfferNothingHaveNotApplied(t *testing.T) {
	p := named("all", 1, nil)
	status := statusesOf([]*v1alpha1.GPUPolicy{p}, []nodeReport{
		{node: "a", policy: policy.Verdict(p, nil)},
		{node: "b", policy: policy.Verdict(p, nil), withheld: "a device plugin gives out this node's GPUs"},
	})["all"]
	const want = "1 nodes have applied the policy; on 1 more the GPUs are withheld: see their GPUNodes"
	if c := status.Conditions[0]; status.Applied != 1 || status.Withheld != 1 || c.Status != metav1.ConditionTrue || c.Message != want {
		t.Errorf("got %+v", status)
	}
}

func TestCountsAreExactAndRefusalsBounded(t *testing.T) {
	p := named("all", 1, nil)
	var nodes []nodeReport
	for i := range 5000 {
		nodes = append(nodes, nodeReport{node: fmt.Sprintf("node-%04d", i), policy: policy.Verdict(p, errors.New(strings.Repeat("ü", 600)))})
	}
	status := statusesOf([]*v1alpha1.GPUPolicy{p}, nodes)[p.Name]
	if status.Refused != 5000 || len(status.Refusals) != v1alpha1.MaxRefusals || status.Refusals[0].Node != "node-0000" {
		t.Errorf("got %d refused, %d refusals", status.Refused, len(status.Refusals))
	}
	if got := status.Refusals[0].Message; utf8.RuneCountInString(got) > v1alpha1.MaxMessageLength || !utf8.ValidString(got) || !strings.HasSuffix(got, "ü…") {
		t.Errorf("the message is %q", got)
	}
	if c := status.Conditions[0]; len(c.Message) > 32768 {
		t.Errorf("the condition's message has %d bytes", len(c.Message))
	}
}
