package control

import (
	"context"
	"errors"
	"fmt"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/scaleout/headroom"
	"github.com/mica-gpu/mica/pkg/scaleout/pair"
)

// reportHeadrooms writes the status of each headroom, where it has changed.
func (l *Loop) reportHeadrooms(ctx context.Context, s pair.Situation) error {
	var failures []error
	for i, object := range s.View.Headrooms {
		status := headroom.Status(object, l.Answers.Of(object), s.View.Headroom[i].Devices, s.Decision.Headroom[i], s.Now)
		failures = append(failures, l.writeHeadroom(ctx, object, status))
	}
	for _, object := range s.View.RefusedHeadrooms {
		status := headroom.Invalid(object, l.Answers.Of(object), s.View.InvalidHeadrooms[object.Name], s.Now)
		failures = append(failures, l.writeHeadroom(ctx, object, status))
	}
	return errors.Join(failures...)
}

func (l *Loop) writeHeadroom(ctx context.Context, object *v1alpha1.GPUHeadroom, status v1alpha1.GPUHeadroomStatus) error {
	if apiequality.Semantic.DeepEqual(object.Status, status) {
		return nil
	}
	after := object.DeepCopy()
	after.Status = status
	err := l.Client.Status().Update(ctx, after)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		l.Enqueue()
		return nil
	}
	if err != nil {
		return fmt.Errorf("write the status of GPUHeadroom %s: %w", object.Name, err)
	}
	return nil
}
