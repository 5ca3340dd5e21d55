package control

import (
	"context"
	"errors"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
)

// reportBudgets writes the status of each budget, where it has changed.
func (l *Loop) reportBudgets(ctx context.Context, s pair.Situation) error {
	decided := map[string]scaleout.BudgetDecision{}
	for _, d := range s.Decision.Budgets {
		decided[d.Name] = d
	}
	var failures []error
	for _, object := range s.View.BudgetObjects {
		failures = append(failures, l.writeBudget(ctx, object, decided[object.Name]))
	}
	return errors.Join(failures...)
}

func (l *Loop) writeBudget(ctx context.Context, object *v1alpha1.GPUBudget, d scaleout.BudgetDecision) error {
	after := object.DeepCopy()
	after.Status = v1alpha1.GPUBudgetStatus{
		ObservedGeneration: object.Generation,
		GPUs:               int32(d.GPUs),
		Held:               int32(d.Held),
	}
	if !d.PricePerHour.IsZero() {
		after.Status.PricePerHour = scaleout.Price(d.PricePerHour)
	}
	if apiequality.Semantic.DeepEqual(object.Status, after.Status) {
		return nil
	}
	err := l.Client.Status().Update(ctx, after)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		l.Enqueue()
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of GPUBudget %s: %w", object.Name, err)
	}
	return nil
}
