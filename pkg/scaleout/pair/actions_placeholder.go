package pair

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// createPlaceholder creates a pod that only a new node of the group has room for.
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
	// It is ours that the cache does not show yet, unless another has taken the name.
	var found corev1.Pod
	if e.Client.Get(ctx, client.ObjectKeyFromObject(a.Pod), &found) == nil && !view.IsPlaceholder(&found, a.Pod.Namespace) {
		return fmt.Errorf("a pod %s/%s that is no placeholder has its name: delete that pod", found.Namespace, found.Name)
	}
	return nil
}

// undo: a placeholder that the API server refuses is not in flight.
func (a createPlaceholder) undo(result *Result, why error) {
	status := result.Status[a.group()]
	status.InFlight = slices.DeleteFunc(slices.Clone(status.InFlight), func(e v1alpha1.InFlight) bool { return e.ID == a.Pod.Name })
	if why != nil && status.NotReady == "" {
		status.NotReady = v1alpha1.ReasonScaleUpFailed
		status.Message = fmt.Sprintf("placeholder %s cannot be created: %s; see to the quotas, the admission and the controller's rights in namespace %s",
			a.Pod.Name, excerpt.Of(why.Error(), maxMessage), a.Pod.Namespace)
	}
	result.Status[a.group()] = status
}

// deletePlaceholder deletes one that has served.
type deletePlaceholder struct {
	Name types.NamespacedName
	UID  types.UID
	// Group for which it was.
	Group string
	Why   string
}

func (a deletePlaceholder) String() string {
	return fmt.Sprintf("delete placeholder %s: %s", a.Name.Name, a.Why)
}

func (a deletePlaceholder) group() string { return a.Group }

func (a deletePlaceholder) do(ctx context.Context, e *Executor, _ *Result) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Name.Namespace, Name: a.Name.Name}}
	err := e.Client.Delete(ctx, pod, &client.DeleteOptions{
		GracePeriodSeconds: ptr.To(int64(0)),
		Preconditions:      &metav1.Preconditions{UID: &a.UID},
	})
	// A conflict is another pod of the name: the one that was meant is gone.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// undo: a placeholder that the API server does not delete still counts as a node that is coming.
func (a deletePlaceholder) undo(result *Result, why error) {
	status := result.Status[a.Group]
	if why != nil && status.NotReady == "" {
		status.NotReady = v1alpha1.ReasonPlaceholderStays
		status.Message = fmt.Sprintf("placeholder %s cannot be deleted: %s; see to the admission and the controller's rights in namespace %s",
			a.Name.Name, excerpt.Of(why.Error(), maxMessage), a.Name.Namespace)
	}
	result.Status[a.Group] = status
}
