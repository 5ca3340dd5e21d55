package control

import (
	"context"
	"errors"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
)

// updateStatus writes an object's status. If the object has changed meanwhile, it leaves that to another pass.
func (l *Loop) updateStatus(ctx context.Context, kind string, object client.Object) (written bool, err error) {
	err = l.Client.Status().Update(ctx, object)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		l.Enqueue()
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write the status of %s %s: %w", kind, object.GetName(), err)
	}
	return true, nil
}

// reportHeadrooms writes the statuses of headrooms that have changed.
func (l *Loop) reportHeadrooms(ctx context.Context, s pair.Situation) error {
	var failures []error
	write := func(object *v1alpha1.GPUHeadroom, status v1alpha1.GPUHeadroomStatus) {
		if apiequality.Semantic.DeepEqual(object.Status, status) {
			return
		}
		after := object.DeepCopy()
		after.Status = status
		_, err := l.updateStatus(ctx, "GPUHeadroom", after)
		failures = append(failures, err)
	}
	for i, object := range s.View.Headrooms {
		write(object, headroom.Status(object, s.View.Headroom[i].Devices, s.Decision.Headroom[i], s.Now))
	}
	for _, object := range s.View.RefusedHeadrooms {
		write(object, headroom.Invalid(object, s.View.InvalidHeadrooms[object.Name], s.Now))
	}
	return errors.Join(failures...)
}

// reportBudgets writes the statuses of budgets that have changed.
func (l *Loop) reportBudgets(ctx context.Context, s pair.Situation) error {
	decided := map[string]scaleout.BudgetDecision{}
	for _, d := range s.Decision.Budgets {
		decided[d.Name] = d
	}
	var failures []error
	for _, object := range s.View.BudgetObjects {
		d, after := decided[object.Name], object.DeepCopy()
		after.Status = v1alpha1.GPUBudgetStatus{ObservedGeneration: object.Generation, GPUs: int32(d.GPUs), Held: int32(d.Held)}
		if !d.PricePerHour.IsZero() {
			after.Status.PricePerHour = scaleout.Price(d.PricePerHour)
		}
		if apiequality.Semantic.DeepEqual(object.Status, after.Status) {
			continue
		}
		_, err := l.updateStatus(ctx, "GPUBudget", after)
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
