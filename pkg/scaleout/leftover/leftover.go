// Package leftover takes back what the controller has written on objects of others and no longer stands for, because
// it was uninstalled or is dead. It knows no plan, and writes nothing but what it takes back.
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

// page is how many nodes are in memory at a time.
const page = 500

// Nodes takes back protections, cordons and marks of nodes: those that have expired, or all of them. The result is an
// error if a node is left as it was, also if it was changed meanwhile: the call may be repeated.
func Nodes(ctx context.Context, c client.Client, now time.Time, expired bool) error {
	var errs []error
	for next := ""; ; {
		var nodes corev1.NodeList
		if err := c.List(ctx, &nodes, client.Limit(page), client.Continue(next)); err != nil {
			return errors.Join(append(errs, fmt.Errorf("list the nodes to see which the controller holds: %w", err))...)
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

// release fails if the node has changed since it was read: a controller may have renewed what it holds the node by.
func release(ctx context.Context, c client.Client, node *corev1.Node) error {
	changed := node.DeepCopy()
	view.Unmark(changed)
	view.Unprotect(changed)
	if equality.Semantic.DeepEqual(node, changed) {
		return nil
	}
	patch := client.MergeFromWithOptions(node, client.MergeFromWithOptimisticLock{})
	if err := client.IgnoreNotFound(c.Patch(ctx, changed, patch)); err != nil {
		return fmt.Errorf("take back what the controller holds node %s by: %w", node.Name, err)
	}
	klog.FromContext(ctx).Info("Released the node", "node", node.Name)
	return nil
}
