package pair

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// createPlaceholder creates a pod that fits on a new node of the group only.
type createPlaceholder struct{ Pod *corev1.Pod }

func (a createPlaceholder) String() string {
	return fmt.Sprintf("create placeholder %s for a node of %s", a.Pod.Name, a.group())
}

func (a createPlaceholder) group() string { return a.Pod.Labels[v1alpha1.LabelNodeGroup] }

func (a createPlaceholder) do(ctx context.Context, e *Executor, _ *Result) error {
	err := e.Client.Create(ctx, a.Pod.DeepCopy())
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// Usually it is ours, and the cache is behind.
	var found corev1.Pod
	if e.Client.Get(ctx, client.ObjectKeyFromObject(a.Pod), &found) == nil && !view.IsPlaceholder(&found, a.Pod.Namespace) {
		return fmt.Errorf("another pod %s/%s has its name: delete that pod", found.Namespace, found.Name)
	}
	return nil
}

// undo: a refused placeholder is not in flight.
func (a createPlaceholder) undo(result *Result, err error) {
	status := result.Status[a.group()]
	status.InFlight = slices.DeleteFunc(slices.Clone(status.InFlight), func(e v1alpha1.InFlight) bool { return e.ID == a.Pod.Name })
	result.Status[a.group()] = status
	if err != nil {
		result.refused(a.group(), v1alpha1.ReasonScaleUpFailed, "placeholder %s cannot be created: %s; check quotas, admission and the controller's rights in namespace %s",
			a.Pod.Name, excerpt.Of(err.Error(), maxMessage), a.Pod.Namespace)
	}
}

// refused reports a refused action, unless the group has another problem.
func (r *Result) refused(group, reason, format string, args ...any) {
	if status := r.Status[group]; status.NotReady == "" {
		status.NotReady, status.Message = reason, fmt.Sprintf(format, args...)
		r.Status[group] = status
	}
}

// deletePlaceholder deletes a placeholder that is not needed any more.
type deletePlaceholder struct {
	Pod *corev1.Pod
	Why string
}

func (a deletePlaceholder) String() string {
	return fmt.Sprintf("delete placeholder %s: %s", a.Pod.Name, a.Why)
}

func (a deletePlaceholder) group() string { return a.Pod.Labels[v1alpha1.LabelNodeGroup] }

func (a deletePlaceholder) do(ctx context.Context, e *Executor, _ *Result) error {
	err := e.Client.Delete(ctx, a.Pod, &client.DeleteOptions{
		GracePeriodSeconds: ptr.To(int64(0)),
		Preconditions:      &metav1.Preconditions{UID: &a.Pod.UID},
	})
	// A conflict means that another pod has the name.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// undo: a placeholder that stays still counts as a coming node.
func (a deletePlaceholder) undo(result *Result, err error) {
	if err != nil {
		result.refused(a.group(), v1alpha1.ReasonPlaceholderStays, "placeholder %s cannot be deleted: %s; check admission and the controller's rights in namespace %s",
			a.Pod.Name, excerpt.Of(err.Error(), maxMessage), a.Pod.Namespace)
	}
}
