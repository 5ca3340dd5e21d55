package control

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"

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
		PricePerHour:       decimal(d.PricePerHour),
		Held:               int32(d.Held),
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

// decimal is a price for people, who do not write 4600m for 4.6.
func decimal(price resource.Quantity) string {
	if price.IsZero() {
		return ""
	}
	return strconv.FormatFloat(price.AsApproximateFloat64(), 'f', -1, 64)
}
