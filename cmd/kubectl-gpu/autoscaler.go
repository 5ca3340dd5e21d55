package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/scaleout/pair"
	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// restrict adds Cluster Autoscaler's own limits and backoffs to those of the groups, as the
// controller does. Who may not read its status is told without them.
func restrict(ctx context.Context, reader client.Reader, status types.NamespacedName, v *view.View, now time.Time) error {
	var written corev1.ConfigMap
	switch err := reader.Get(ctx, status, &written); {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		return nil
	case err != nil:
		return fmt.Errorf("read the status of Cluster Autoscaler in ConfigMap %s: %w", status, err)
	}
	autoscaler := pair.ReadAutoscaler(&written)
	for i, state := range v.GroupStates {
		if state.Refused == "" {
			v.Groups[i].Closed = pair.Closed(state.Object, autoscaler, now)
			v.Groups[i].Max = pair.Max(state.Object, autoscaler, now)
		}
	}
	return nil
}
