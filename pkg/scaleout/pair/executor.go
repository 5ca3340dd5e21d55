package pair

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// Executor does what Decide says. Every step may be done again, and may have been done by
// another before.
type Executor struct {
	Client client.Client
	// Live reads the API server itself, and not what was seen of it before.
	Live client.Reader
	// Nodegroups is nil where no group may call EKS.
	Nodegroups Nodegroups
}

// Do does the actions of a result, one after the other, and writes into its Status what it
// has recorded of them, so that the next writer of the status does not undo it. An action that
// fails stops no other, but for a failure that is not on record: the later actions of its group
// would delete what shows it, and they wait for the next time. So does everything of a kind that an
// overloaded server has not done, for any group, and what is left when ctx ends.
func (e *Executor) Do(ctx context.Context, result *Result) error {
	logger := klog.FromContext(ctx)
	var errs []error
	unrecorded, overloaded := map[string]bool{}, overloads{}
	for _, action := range result.Actions {
		group := action.group()
		_, records := action.(setBackoff)
		if unrecorded[group] || overloaded[kindOf(action)] || ctx.Err() != nil {
			unrecorded[group] = unrecorded[group] || records
			action.undo(result, nil)
			continue
		}
		if err := action.do(ctx, e, result); err != nil {
			unrecorded[group] = unrecorded[group] || records
			overloaded.note(action, err)
			action.undo(result, err)
			errs = append(errs, fmt.Errorf("%s: %w", action, err))
			continue
		}
		logger.V(2).Info("Did the action", "action", action.String(), "group", group)
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// changeStatus changes the status of a group as it is now. A group that is gone needs none.
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
