package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Report is the status with what one node made of the policy: nil for a node that
// the policy does not apply to any more. Everything but the node's own entry is
// derived from all entries. It tells whether that is news.
func Report(status v1alpha1.GPUPolicyStatus, node string, entry *v1alpha1.NodeStatus) (v1alpha1.GPUPolicyStatus, bool) {
	updated := *status.DeepCopy()
	at, found := slices.BinarySearchFunc(updated.Nodes, node, func(n v1alpha1.NodeStatus, name string) int { return cmp.Compare(n.Name, name) })
	if !found { // an older version, or a person, may have sorted them otherwise
		if i := slices.IndexFunc(updated.Nodes, func(n v1alpha1.NodeStatus) bool { return n.Name == node }); i >= 0 {
			at, found = i, true
		}
	}
	if entry != nil && !found && len(updated.Nodes) >= v1alpha1.MaxNodeStatuses {
		if updated.Nodes, at = withRoom(updated.Nodes, at, *entry); at < 0 {
			return status, false
		}
	}
	switch {
	case entry == nil && found:
		updated.Nodes = slices.Delete(updated.Nodes, at, at+1)
	case entry == nil:
		return status, false
	default:
		own := v1alpha1.NodeStatus{Name: node, ObservedGeneration: entry.ObservedGeneration, Message: bounded(entry.Message)}
		if found {
			updated.Nodes[at] = own
		} else {
			updated.Nodes = slices.Insert(updated.Nodes, at, own)
		}
	}
	summarize(&updated)
	return updated, !equality.Semantic.DeepEqual(status, updated)
}

// withRoom is a full list without a node of which there is nothing to tell, where
// an entry that is to stand at a place tells something, and the place of that entry,
// negative where there is no room for it.
func withRoom(nodes []v1alpha1.NodeStatus, at int, entry v1alpha1.NodeStatus) ([]v1alpha1.NodeStatus, int) {
	silent := slices.IndexFunc(nodes, func(n v1alpha1.NodeStatus) bool { return n.Message == "" })
	if entry.Message == "" || silent < 0 {
		return nodes, -1
	}
	if silent < at {
		at--
	}
	return slices.Delete(nodes, silent, silent+1), at
}

// summarize derives counts and conditions from the entries.
func summarize(status *v1alpha1.GPUPolicyStatus) {
	status.Applied, status.Refused = 0, 0
	var refusals []string
	for _, node := range status.Nodes {
		status.ObservedGeneration = max(status.ObservedGeneration, node.ObservedGeneration)
		if node.Message == "" {
			status.Applied++
			continue
		}
		status.Refused++
		if len(refusals) < shownRefusals {
			refusals = append(refusals, fmt.Sprintf("%s: %s", node.Name, node.Message))
		}
	}
	ready := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonApplied, ObservedGeneration: status.ObservedGeneration,
		Message: fmt.Sprintf("%d nodes offer what the policy says", status.Applied),
	}
	if status.Refused > 0 {
		ready.Status, ready.Reason = metav1.ConditionFalse, v1alpha1.ReasonRefused
		ready.Message = fmt.Sprintf("%d of %d nodes cannot do what the policy says and go on as before: %s",
			status.Refused, len(status.Nodes), strings.Join(refusals, "; "))
	}
	meta.SetStatusCondition(&status.Conditions, ready)
}

// shownRefusals keep a condition readable.
const shownRefusals = 3

// bounded cuts a sentence to what the status takes.
func bounded(message string) string {
	message = strings.ToValidUTF8(message, "�")
	if utf8.RuneCountInString(message) <= v1alpha1.MaxMessageLength {
		return message
	}
	return string([]rune(message)[:v1alpha1.MaxMessageLength-1]) + "…"
}
