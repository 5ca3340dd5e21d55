package pair

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// Executor does what Decide says. Every step may be done again, and may have been done by
// another before.
type Executor struct {
	Client client.Client
	// Nodegroups is nil where no group may call EKS.
	Nodegroups Nodegroups
}

// Do does the actions of a result, one after the other, and writes into its Status what it
// has recorded of them, so that who writes the status next does not undo it. An action that
// fails does not stop those of other groups; a group's own later ones wait for the next
// time, since they count on those before.
func (e *Executor) Do(ctx context.Context, result *Result) error {
	logger := klog.FromContext(ctx)
	var errs []error
	stopped := map[string]bool{}
	for _, action := range result.Actions {
		group := groupOf(action)
		if stopped[group] && group != "" {
			result.undo(action, nil)
			continue
		}
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		if err := e.do(ctx, action, result); err != nil {
			stopped[group] = true
			result.undo(action, err)
			errs = append(errs, fmt.Errorf("%s: %w", action, err))
			continue
		}
		logger.V(2).Info("Done", "action", action.String(), "group", group)
	}
	return errors.Join(errs...)
}

// undo takes what was not done out of the status: a placeholder that the API server refuses
// is not in flight. Why is told, where that is known.
func (r *Result) undo(action Action, why error) {
	create, is := action.(CreatePlaceholder)
	if !is {
		return
	}
	group := groupOf(action)
	status := r.Status[group]
	status.InFlight = slices.DeleteFunc(slices.Clone(status.InFlight), func(e v1alpha1.InFlight) bool { return e.ID == create.Pod.Name })
	if why != nil && status.NotReady == "" {
		status.NotReady = v1alpha1.ReasonScaleUpFailed
		status.Message = fmt.Sprintf("placeholder %s cannot be created: %s; see to the quotas, the admission and the controller's rights in namespace %s",
			create.Pod.Name, excerpt.Of(why.Error(), maxMessage), create.Pod.Namespace)
	}
	r.Status[group] = status
}

// groupOf is the group that an action is of; empty for what counts on nothing before.
func groupOf(action Action) string {
	switch a := action.(type) {
	case CreatePlaceholder:
		return a.Pod.Labels[v1alpha1.LabelNodeGroup]
	case SetBackoff:
		return a.Group.Name
	case SetDesired:
		return a.Group.Name
	case DeletePlaceholder:
		return a.Group
	}
	return ""
}

func (e *Executor) do(ctx context.Context, action Action, result *Result) error {
	switch a := action.(type) {
	case CreatePlaceholder:
		return e.create(ctx, a)
	case DeletePlaceholder:
		return e.delete(ctx, a)
	case SetBackoff:
		return e.setBackoff(ctx, a)
	case SetDesired:
		return e.setDesired(ctx, a, result)
	case SetWarmPool:
		return e.setWarmPool(ctx, a)
	case Protect:
		return e.protect(ctx, a)
	}
	return fmt.Errorf("this version does not know how to do a %T", action)
}

func (e *Executor) create(ctx context.Context, a CreatePlaceholder) error {
	err := e.Client.Create(ctx, a.Pod.DeepCopy())
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	// It is ours that the cache does not show yet, unless another has taken the name.
	var found corev1.Pod
	if e.Client.Get(ctx, client.ObjectKeyFromObject(a.Pod), &found) == nil && !view.IsPlaceholder(&found) {
		return fmt.Errorf("a pod %s/%s that is no placeholder has its name: delete that pod", found.Namespace, found.Name)
	}
	return nil
}

func (e *Executor) delete(ctx context.Context, a DeletePlaceholder) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: a.Name.Namespace, Name: a.Name.Name}}
	none := int64(0)
	err := e.Client.Delete(ctx, pod, &client.DeleteOptions{
		GracePeriodSeconds: &none,
		Preconditions:      &metav1.Preconditions{UID: &a.UID},
	})
	// A conflict is another pod of the name: the one that was meant is gone.
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// changeStatus changes the status of a group as it is now. A group that is gone needs none.
func (e *Executor) changeStatus(ctx context.Context, name string, change func(*v1alpha1.GPUNodeGroupStatus)) error {
	var group v1alpha1.GPUNodeGroup
	if err := e.Client.Get(ctx, types.NamespacedName{Name: name}, &group); err != nil {
		return client.IgnoreNotFound(err)
	}
	before := group.DeepCopy()
	change(&group.Status)
	if equality.Semantic.DeepEqual(before.Status, group.Status) {
		return nil
	}
	return client.IgnoreNotFound(e.Client.Status().Update(ctx, &group))
}

func (e *Executor) setBackoff(ctx context.Context, a SetBackoff) error {
	return e.changeStatus(ctx, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
		backoff := a.Backoff
		status.Backoff = &backoff
	})
}

// setDesired records the intent, calls EKS, and records what EKS calls it. Where it is killed
// in between, the intent is found in the status and is sent again, which EKS takes for the
// same update.
func (e *Executor) setDesired(ctx context.Context, a SetDesired, result *Result) error {
	if e.Nodegroups == nil || a.Group.Spec.Provider.EKS == nil {
		return errors.New("there is no client of EKS: give the controller a region and credentials, or choose pairing placeholder or observe")
	}
	if err := e.changeStatus(ctx, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
		status.InFlight = withEntry(status.InFlight, a.Entry)
	}); err != nil {
		return fmt.Errorf("recording the intent, without which EKS is not called: %w", err)
	}
	id, err := e.Nodegroups.SetDesired(ctx, *a.Group.Spec.Provider.EKS, a.Entry)
	if err != nil || id == "" {
		return err
	}
	named := a.Entry
	named.ID = id
	status := result.Status[a.Group.Name]
	status.InFlight = withEntry(status.InFlight, named)
	result.Status[a.Group.Name] = status
	if err := e.changeStatus(ctx, a.Group.Name, func(status *v1alpha1.GPUNodeGroupStatus) {
		status.InFlight = withEntry(status.InFlight, named)
	}); err != nil {
		return fmt.Errorf("recording update %s of EKS: %w", id, err)
	}
	return nil
}

// withEntry has the entry in place of the intent and of the entry of its ID.
func withEntry(entries []v1alpha1.InFlight, entry v1alpha1.InFlight) []v1alpha1.InFlight {
	others := slices.DeleteFunc(slices.Clone(entries), func(e v1alpha1.InFlight) bool {
		return e.ID == IntentID || e.ID == entry.ID
	})
	return append(others, entry)
}

func (e *Executor) setWarmPool(ctx context.Context, a SetWarmPool) error {
	if e.Nodegroups == nil || a.Group.Spec.Provider.EKS == nil {
		return errors.New("there is no client of EKS: give the controller a region and credentials, or do not have warm pools steered")
	}
	_, err := e.Nodegroups.SetWarmPool(ctx, *a.Group.Spec.Provider.EKS, a.Size)
	return err
}

// protect annotates a node, or takes the annotations away where they are ours. Someone else's
// are left alone: who forbids the removal of a node has a reason.
func (e *Executor) protect(ctx context.Context, a Protect) error {
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
		delete(changed.Annotations, v1alpha1.AnnotationProtected)
		delete(changed.Annotations, v1alpha1.AnnotationScaleDownDisabled)
	} else {
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationProtected, a.For)
		metav1.SetMetaDataAnnotation(&changed.ObjectMeta, v1alpha1.AnnotationScaleDownDisabled, "true")
	}
	if equality.Semantic.DeepEqual(node.Annotations, changed.Annotations) {
		return nil
	}
	return client.IgnoreNotFound(e.Client.Patch(ctx, changed, client.MergeFrom(&node)))
}
