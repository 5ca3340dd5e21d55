package pair

import (
	"context"
	"errors"
	"fmt"
	"net"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Executor executes the actions of Decide. Every action can be repeated.
type Executor struct {
	Client client.Client
	// Live reads from the API server instead of a cache.
	Live client.Reader
	// Nodegroups is nil if no group may call EKS.
	Nodegroups Nodegroups
}

// Do executes a result's actions in order, and records their effects in its Status, so that the next writer of the status
// does not undo them. A failed action stops no other, with two exceptions: if a group's failure cannot be recorded, the
// group's later actions, which delete its evidence, wait for the next pass. If a server is overloaded, so do all actions of
// the same kind: each further request would be as slow, and make it worse. So does the rest when ctx ends.
func (e *Executor) Do(ctx context.Context, result *Result) error {
	logger := klog.FromContext(ctx)
	var errs []error
	unrecorded, overloaded := map[string]bool{}, map[string]bool{}
	for _, action := range result.Actions {
		group, kind := action.group(), fmt.Sprintf("%T", action)
		_, records := action.(setBackoff)
		if unrecorded[group] || overloaded[kind] || ctx.Err() != nil {
			unrecorded[group] = unrecorded[group] || records
			action.undo(result, nil)
			continue
		}
		if err := action.do(ctx, e, result); err != nil {
			unrecorded[group] = unrecorded[group] || records
			overloaded[kind] = isOverload(err)
			action.undo(result, err)
			errs = append(errs, fmt.Errorf("%s: %w", action, err))
			continue
		}
		logger.V(2).Info("Executed the action", "action", action.String(), "group", group)
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// changeStatus changes a group's current status. A deleted group needs no change.
func (e *Executor) changeStatus(ctx context.Context, result *Result, name string, change func(*v1alpha1.GPUNodeGroupStatus)) error {
	if result.Written == nil {
		result.Written = map[string]bool{}
	}
	result.Written[name] = true
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

// isOverload reports whether an error is about the server, not about the object of the request.
func isOverload(err error) bool {
	var network net.Error
	return apierrors.IsTooManyRequests(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || errors.As(err, &network) && network.Timeout()
}
