package control

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/autoscaler"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// countedAfter is the age at which Cluster Autoscaler's status surely counts a node.
const countedAfter = autoscaler.Fresh + 2*time.Minute

// outlastsAutoscaler reports Cluster Autoscaler's flags that are too short for the group, as its actions show: reading its flags
// would need a right. Nil: they never were. The condition stays until a newer node was complete in time.
func (r groupReport) outlastsAutoscaler(before []metav1.Condition) *metav1.Condition {
	condition := &metav1.Condition{Type: v1alpha1.ConditionOutlastsAutoscaler, Status: metav1.ConditionTrue}
	was := meta.FindStatusCondition(before, v1alpha1.ConditionOutlastsAutoscaler)
	known := was != nil && was.Status == metav1.ConditionTrue
	remedy := fmt.Sprintf("Set %s and %s of Cluster Autoscaler to more than %s, the group's provisionTimeout, or else it may add another node for pods that wait for this one",
		autoscaler.FlagProvision, autoscaler.FlagStartup, r.group.Object.ProvisionTimeout())
	switch node := r.givenUp(); {
	case node != nil && (!known || was.Reason != v1alpha1.ReasonStartupTime):
		condition.Reason = v1alpha1.ReasonStartupTime
		condition.Message = fmt.Sprintf("Cluster Autoscaler has given up on node %s, which joined %s ago and still starts: its flag %s is shorter. %s.",
			node.Object.Name, r.now.Sub(node.Object.CreationTimestamp.Time).Round(time.Second), autoscaler.FlagStartup, remedy)
	case node == nil && r.autoscaler.TimedOut() && !known:
		condition.Reason = v1alpha1.ReasonProvisionTime
		condition.Message = fmt.Sprintf("Cluster Autoscaler has given up on a node that it had asked for, since its flag %s has passed (%s). %s.",
			autoscaler.FlagProvision, r.autoscaler.Message, remedy)
	case known && slices.ContainsFunc(r.group.Nodes, func(n view.NodeState) bool {
		return n.Complete() && !r.autoscaler.TimedOut() && n.Object.CreationTimestamp.After(was.LastTransitionTime.Time)
	}):
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonWaitsLongEnough
		condition.Message = "The newest node was complete before Cluster Autoscaler gave up on it."
	case was != nil:
		return was
	default:
		return nil
	}
	return condition
}

// givenUp is the oldest Ready node with the startup taint, if Cluster Autoscaler counts fewer nodes as starting than there are.
// Nil: Cluster Autoscaler has given up on none.
func (r groupReport) givenUp() *view.NodeState {
	if r.autoscaler.Unready == 0 {
		return nil
	}
	var oldest *view.NodeState
	starting := 0
	for i := range r.group.Nodes {
		n := &r.group.Nodes[i]
		closed := slices.ContainsFunc(n.Object.Spec.Taints, func(t corev1.Taint) bool { return t.Key == v1alpha1.TaintStartup })
		if !n.Ready || !closed || n.Object.DeletionTimestamp != nil || r.now.Sub(n.Object.CreationTimestamp.Time) < countedAfter {
			continue
		}
		starting++
		if oldest == nil {
			oldest = n // in order of creation
		}
	}
	if starting <= r.autoscaler.NotStarted {
		return nil
	}
	return oldest
}

// nodesStuck reports nodes that keep the startup taint for too long. Nil: there never was one.
func (r groupReport) nodesStuck(before []metav1.Condition) *metav1.Condition {
	condition := &metav1.Condition{Type: v1alpha1.ConditionNodesStuck}
	switch {
	case len(r.stuck) > 0:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, r.stuck[0].Reason, r.stuck[0].Message
		if len(r.stuck) > 1 {
			condition.Message = fmt.Sprintf("%d nodes. %s", len(r.stuck), condition.Message)
		}
	case meta.FindStatusCondition(before, v1alpha1.ConditionNodesStuck) != nil:
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonNoneStuck
		condition.Message = "No node keeps the startup taint for longer than it should."
	default:
		return nil
	}
	return condition
}
