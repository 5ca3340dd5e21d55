package driver

import (
	"context"
	"time"

	"k8s.io/klog/v2"
)

const (
	reconcileInterval = 10 * time.Minute
	reconcileRetry    = time.Minute
)

// reconcile repairs leftovers: at the start, once there are GPUs, and from time to time.
func (d *Driver) reconcile(ctx context.Context) error {
	d.reportAll(ctx)
	for {
		interval := reconcileInterval
		if err := d.preparer.Reconcile(ctx); err != nil && ctx.Err() == nil {
			interval = reconcileRetry
			klog.FromContext(ctx).Error(err, "Cannot check every prepared claim", "retryIn", interval)
		}
		if wait, needed := d.preparer.ReconcileIn(); needed {
			interval = min(interval, wait)
		}
		d.counted.Wake()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.offer.Changed():
		case <-d.restored:
		case <-d.preparer.Damaged():
		case <-time.After(interval):
		}
	}
}
