// Package leftover removes the controller's protections, cordons and marks from nodes after the controller was uninstalled or
// has crashed.
package leftover

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/scaleout/view"
)

// page is the number of nodes per list request.
const page = 500

// Nodes removes the protections, cordons and marks of all nodes, or only expired ones. It returns an error if it could
// not release a node, also because the node has changed. The call can be repeated.
func Nodes(ctx context.Context, c client.Client, now time.Time, expired bool) error {
	var errs []error
	for next := ""; ; {
		var nodes corev1.NodeList
		if err := c.List(ctx, &nodes, client.Limit(page), client.Continue(next)); err != nil {
			return errors.Join(append(errs, fmt.Errorf("list the nodes that the controller may hold: %w", err))...)
		}
		for i := range nodes.Items {
			if node := &nodes.Items[i]; !expired || view.HoldExpired(node, now) {
				errs = append(errs, release(ctx, c, node))
			}
		}
		if next = nodes.Continue; next == "" {
			return errors.Join(errs...)
		}
	}
}

// release fails if the node has changed since it was read: a controller may have renewed the hold.
func release(ctx context.Context, c client.Client, node *corev1.Node) error {
	changed := node.DeepCopy()
	view.Unmark(changed)
	view.Unprotect(changed)
	if equality.Semantic.DeepEqual(node, changed) {
		return nil
	}
	patch := client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(c.Patch(ctx, changed, patch)); err != nil {
		return fmt.Errorf("release node %s: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("Released the node", "node", node.Name)
	return nil
}
