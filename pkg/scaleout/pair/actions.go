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

// Action is one change. It can be repeated.
type Action interface {
	String() string
	// group is the action's node group. Empty: none.
	group() string
	// do executes the action, and updates the result's Status with what it recorded.
	do(ctx context.Context, e *Executor, result *Result) error
	// undo removes a failed action from the result's Status. err is nil if the action was skipped.
	undo(result *Result, err error)
}

// unpromised is embedded in actions that no status mentions before they are executed, and ungrouped in those without a group.
type (
	unpromised struct{}
	ungrouped  struct{}
)

func (unpromised) undo(*Result, error) {}
func (ungrouped) group() string        { return "" }

// setBackoff records a group's failure before its evidence is deleted.
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

// protect keeps Cluster Autoscaler from removing a node for the time of a lease. An empty For ends that.
type protect struct {
	unpromised
	ungrouped
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

// do leaves another client's annotation alone.
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
