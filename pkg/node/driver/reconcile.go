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

// reconcile repairs what was left behind, at the start, once there are GPUs, without
// which a claim cannot be prepared anew, and from time to time.
func (d *Driver) reconcile(ctx context.Context) error {
	d.reportAll(ctx)
	for {
		interval := reconcileInterval
		if err := d.preparer.Reconcile(ctx); err != nil && ctx.Err() == nil {
			interval = reconcileRetry
			klog.FromContext(ctx).Error(err, "Not every prepared claim could be checked", "retryIn", interval)
		}
		if wait, needed := d.preparer.ReconcileIn(); needed {
			interval = min(interval, wait)
		}
		d.claimsChanged()
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
