package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/policy"
)

// nodeReport is a plugin's report.
type nodeReport struct {
	node   string
	labels map[string]string
	// policy is the node's policy, or nil.
	policy *v1alpha1.NodePolicy
	// withheld is why the node offers no GPUs. Empty: it offers them.
	withheld string
}

// statusesOf are the policies' statuses by name. A node counts for the policy that selects it now, and is pending until it
// reports on that policy's generation.
func statusesOf(policies []*v1alpha1.GPUPolicy, reports []nodeReport) map[string]v1alpha1.GPUPolicyStatus {
	statuses := make(map[string]v1alpha1.GPUPolicyStatus, len(policies))
	for _, p := range policies {
		statuses[p.Name] = v1alpha1.GPUPolicyStatus{ObservedGeneration: p.Generation, Conditions: slices.Clone(p.Status.Conditions)}
	}
	reports = slices.SortedFunc(slices.Values(reports), func(a, b nodeReport) int { return cmp.Compare(a.node, b.node) })
	for _, report := range reports {
		if selected := policy.Select(policies, report.labels); selected != nil {
			status := statuses[selected.Name]
			count(&status, selected, report)
			statuses[selected.Name] = status
		}
	}
	for _, p := range policies {
		status := statuses[p.Name]
		meta.SetStatusCondition(&status.Conditions, ready(p, status))
		statuses[p.Name] = status
	}
	return statuses
}

func count(status *v1alpha1.GPUPolicyStatus, selected *v1alpha1.GPUPolicy, report nodeReport) {
	switch p := report.policy; {
	case report.withheld != "":
		status.Withheld++
	case p == nil || p.Name != selected.Name || p.UID != string(selected.UID) || p.ObservedGeneration != selected.Generation:
		status.Pending++
	case p.Message == "":
		status.Applied++
	default:
		status.Refused++
		if len(status.Refusals) < v1alpha1.MaxRefusals {
			status.Refusals = append(status.Refusals, v1alpha1.Refusal{Node: report.node, Message: p.Message})
		}
	}
}

// shownRefusals keep a condition readable.
const shownRefusals = 3

func ready(p *v1alpha1.GPUPolicy, status v1alpha1.GPUPolicyStatus) metav1.Condition {
	condition := metav1.Condition{Type: v1alpha1.ConditionReady, ObservedGeneration: p.Generation}
	all := status.Applied + status.Pending + status.Refused
	switch err := policy.Check(p); {
	case err != nil:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalid, err.Error()
	case status.Refused > 0:
		var shown []string
		for _, refusal := range status.Refusals[:min(len(status.Refusals), shownRefusals)] {
			shown = append(shown, fmt.Sprintf("%s: %s", refusal.Node, refusal.Message))
		}
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonRefused
		condition.Message = fmt.Sprintf("%d of %d nodes cannot apply the policy and keep their previous offer: %s", status.Refused, all, strings.Join(shown, "; "))
	case status.Pending > 0:
		condition.Status, condition.Reason = metav1.ConditionUnknown, v1alpha1.ReasonPending
		condition.Message = fmt.Sprintf("%d of %d nodes have not reported on generation %d yet", status.Pending, all, p.Generation)
	default:
		condition.Status, condition.Reason = metav1.ConditionTrue, v1alpha1.ReasonApplied
		condition.Message = fmt.Sprintf("%d nodes have applied the policy", status.Applied)
	}
	if status.Withheld > 0 {
		condition.Message += fmt.Sprintf("; on %d more the GPUs are withheld: see their GPUNodes", status.Withheld)
	}
	return condition
}
