package pair

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Action is one thing to do. Each leaves a state in which it may be done again.
type Action interface {
	String() string
	// group is the name of the node group that the action is about; empty: of no group in particular.
	group() string
	// do writes into the result what it has recorded, so that who writes the status next does
	// not undo it.
	do(ctx context.Context, e *Executor, result *Result) error
	// undo takes out of the result's status what was not done: because of why, or, where that
	// is nil, because the group's failure is not on record.
	undo(result *Result, why error)
}

// unpromised is part of the actions that no status mentions before they are done.
type unpromised struct{}

func (unpromised) undo(*Result, error) {}

// setBackoff records that a group has failed, before what it was for is given up.
type setBackoff struct {
	unpromised
	Group   *v1alpha1.GPUNodeGroup
	Backoff v1alpha1.Backoff
}

func (a setBackoff) String() string {
	return fmt.Sprintf("leave %s alone until %s: %s", a.Group.Name, a.Backoff.Until.UTC().Format("15:04:05"), a.Backoff.Reason)
}

func (a setBackoff) group() string { return a.Group.Name }

func (a setBackoff) do(ctx context.Context, e *Executor, result *Result) error {
	return e.changeStatus(ctx, result, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
		backoff := a.Backoff
		status.Backoff = &backoff
	})
}

// protect keeps Cluster Autoscaler from removing a node for the time of a lease, or lets it again when For is empty.
type protect struct {
	unpromised
	Node string
	For  string
	Now  time.Time
}

func (a protect) String() string {
	if a.For == "" {
		return fmt.Sprintf("let node %s be removed again", a.Node)
	}
	return fmt.Sprintf("keep node %s for %s", a.Node, a.For)
}

func (protect) group() string { return "" }

// do annotates the node, or takes the annotations away where they are ours. Someone else's
// are left alone: who forbids the removal of a node has a reason.
func (a protect) do(ctx context.Context, e *Executor, _ *Result) error {
	var node corev1.Node
	if err := e.Client.Get(ctx, types.NamespacedName{Name: a.Node}, &node); err != nil {
		return client.IgnoreNotFound(err)
	}
	_, ours := node.Annotations[v1alpha1.AnnotationProtected]
	_, disabled := node.Annotations[v1alpha1.AnnotationScaleDownDisabled]
	if !ours && (disabled || a.For == "") {
		return nil
	}
	changed := node.DeepCopy()
	if a.For == "" {
		view.Unprotect(changed)
	} else {
		view.Hold(changed, a.Now)
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationProtected, a.For)
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationScaleDownDisabled, "true")
	}
	if equality.Semantic.DeepEqual(node.Annotations, changed.Annotations) {
		return nil
	}
	return client.IgnoreNotFound(e.Client.Patch(ctx, changed, client.MergeFrom(&node)))
}
