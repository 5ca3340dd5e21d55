package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// markNode sets the step of a node's end, or renews it for another lease. An empty step removes the mark.
type markNode struct {
	unpromised
	ungrouped
	// Node is as of the decision.
	Node *corev1.Node
	Mark view.Mark
	Now  time.Time
}

func (a markNode) String() string {
	before := view.MarkOf(a.Node).Cordons()
	switch {
	case before && a.Mark == view.MarkOf(a.Node):
		return fmt.Sprintf("keep node %s cordoned", a.Node.Name)
	case a.Mark.Step == view.StepCordoned:
		return fmt.Sprintf("cordon node %s, which is empty", a.Node.Name)
	case before:
		return fmt.Sprintf("uncordon node %s", a.Node.Name)
	case a.Mark.Step == view.StepEmpty:
		return fmt.Sprintf("note that node %s is empty", a.Node.Name)
	}
	return fmt.Sprintf("note that node %s is in use", a.Node.Name)
}

func (a markNode) do(ctx context.Context, e *Executor, _ *Result) error {
	_, err := a.write(ctx, e)
	return err
}

// write reports whether the node has the mark now. A node whose mark or cordon has changed since the decision waits for the
// next pass. Another client's cordon stays.
func (a markNode) write(ctx context.Context, e *Executor) (bool, error) {
	var node corev1.Node
	if err := e.Client.Get(ctx, types.NamespacedName{Name: a.Node.Name}, &node); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	before := view.MarkOf(&node)
	if node.UID != a.Node.UID || before != view.MarkOf(a.Node) || node.Spec.Unschedulable && !before.Cordons() {
		return false, nil
	}
	changed := node.DeepCopy()
	view.Unmark(changed)
	if a.Mark.Step != "" {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationScaleIn, a.Mark.String())
	}
	if a.Mark.Cordons() {
		changed.Spec.Unschedulable = true
		view.Hold(changed, a.Now)
	}
	if err := e.Client.Patch(ctx, changed, client.MergeFromWithOptions(&node, client.MergeFromWithOptimisticLock{})); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return true, nil
}

// endNode ends a cordoned node that is still empty.
type endNode struct {
	ungrouped
	Group    *v1alpha1.GPUNodeGroup
	Node     *corev1.Node
	Instance string
	Now      time.Time
	// Outdated are pods whose nomination does not count any more.
	Outdated map[types.UID]bool
}

func (a endNode) String() string {
	return fmt.Sprintf("end node %s, which is empty", a.Node.Name)
}

// do records that the node ends, and then ends it. After a crash in between, the call is repeated, which AWS ignores. Before
// each call, it reads the node and its pods: a node that is used or uncordoned is taken back, even if AWS was asked before. A
// node that AWS refuses to end is uncordoned. A node that has left the group since AWS was asked is ending.
func (a endNode) do(ctx context.Context, e *Executor, _ *Result) error {
	if e.Nodegroups == nil {
		return errNoEKS
	}
	node := a.Node
	used, err := a.used(ctx, e)
	if err != nil {
		return err
	}
	if used {
		return markNode{Node: node}.do(ctx, e, nil)
	}
	asked := view.MarkOf(node).Step == view.StepEnding
	if !asked {
		ending := markNode{Node: node, Mark: view.Mark{Step: view.StepEnding, Since: a.Now.Truncate(time.Second)}, Now: a.Now}
		if written, err := ending.write(ctx, e); err != nil || !written {
			return err
		}
		node = node.DeepCopy()
		metav1.SetMetaDataAnnotation(&node.ObjectMeta, v1alpha1.AnnotationScaleIn, ending.Mark.String())
	}
	err = e.Nodegroups.End(ctx, a.Group, a.Instance)
	switch {
	case asked && errors.Is(err, ErrNotInGroup):
		return nil
	case errors.Is(err, ErrRefused):
		_, back := markNode{Node: node, Mark: view.Mark{Step: view.StepEmpty, Since: a.Now.Truncate(time.Second)}}.write(ctx, e)
		return errors.Join(err, back)
	}
	return err
}

// used reads from the API server whether the node was uncordoned or has got a pod since the cordon. A deleted node is not used.
func (a endNode) used(ctx context.Context, e *Executor) (bool, error) {
	var node corev1.Node
	if err := e.Live.Get(ctx, types.NamespacedName{Name: a.Node.Name}, &node); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read node %s before ending it: %w", a.Node.Name, err)
	} else if err == nil && !node.Spec.Unschedulable {
		return true, nil
	}
	for field, uses := range map[string]func(*corev1.Pod) bool{"spec.nodeName": needsNode, "status.nominatedNodeName": a.nominated} {
		var pods corev1.PodList
		if err := e.Live.List(ctx, &pods, client.MatchingFields{field: a.Node.Name}); err != nil {
			return false, fmt.Errorf("list the pods whose %s is %s before ending the node: %w", field, a.Node.Name, err)
		}
		if slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return uses(&pod) }) {
			return true, nil
		}
	}
	return false, nil
}

// nominated reports whether a pod is still nominated for the node.
func (a endNode) nominated(pod *corev1.Pod) bool {
	return view.NominatedFor(pod) == a.Node.Name && !a.Outdated[pod.UID]
}

// undo reports in the group's status that the node does not end.
func (a endNode) undo(result *Result, err error) {
	if err == nil {
		return
	}
	status := result.Status[a.Group.Name]
	status.ScaleIn.Problem = fmt.Sprintf("node %s has been empty for long and does not end: %v", a.Node.Name, err)
	result.Status[a.Group.Name] = status
}
