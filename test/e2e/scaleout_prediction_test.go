//go:build e2e

package e2e

import (
	"context"
	"testing"
)

// TestControllerTellsItsMetrics reads them as Prometheus would.
func TestControllerTellsItsMetrics(t *testing.T) {
	t.Parallel()
	s := newScaleOut(t)
	eventually(t, startTimeout, "a controller tells how long plans take", func(ctx context.Context) error {
		return s.expectMetrics(ctx, "mica_scaleout_plan_duration_seconds_count", "mica_scaleout_pending_pods{outcome=\"Blocked\"}", "go_goroutines")
	})
}
