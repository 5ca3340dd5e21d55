// Package verdict writes the status of GPUPolicies from the GPUNodes of all plugins. Package policy selects a node's policy.
package verdict

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	// settle is how long to wait for further changes.
	settle = 500 * time.Millisecond
	// pause is the least time between two counts: the API server sends each status to every node.
	pause = 5 * time.Second
)

// Writer counts after each change. The leader runs it.
type Writer struct {
	client client.Client
	dirty  chan struct{}
}

// New makes a Writer. Nothing happens before Start.
func New(c client.Client) *Writer {
	return &Writer{client: c, dirty: make(chan struct{}, 1)}
}

// NeedLeaderElection: one replica writes.
func (*Writer) NeedLeaderElection() bool { return true }

// Watch counts again after changes of policies, GPUNodes and nodes' labels.
func (w *Writer) Watch(ctx context.Context, informers cache.Informers) error {
	for _, kind := range []client.Object{&v1alpha1.GPUPolicy{}, &v1alpha1.GPUNode{}, &corev1.Node{}} {
		informer, err := informers.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w: install Mica's CRDs", kind, err)
		}
		if _, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { w.mark() },
			UpdateFunc: func(before, after any) {
				if matters(before, after) {
					w.mark()
				}
			},
			DeleteFunc: func(any) { w.mark() },
		}); err != nil {
			return fmt.Errorf("watch %T: %w", kind, err)
		}
	}
	return nil
}

// matters ignores our own writes and nodes' heartbeats.
func matters(before, after any) bool {
	switch now := after.(type) {
	case *v1alpha1.GPUPolicy:
		old, same := before.(*v1alpha1.GPUPolicy)
		return !same || old.UID != now.UID || old.Generation != now.Generation
	case *corev1.Node:
		old, same := before.(*corev1.Node)
		return !same || !maps.Equal(old.Labels, now.Labels)
	}
	return true
}

func (w *Writer) mark() {
	select {
	case w.dirty <- struct{}{}:
	default: // a count is due already
	}
}

// Start counts until ctx ends. The first count is at once.
func (w *Writer) Start(ctx context.Context) error {
	w.mark()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.dirty:
		}
		if !sleep(ctx, settle) {
			return nil
		}
		if err := w.write(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot write the status of a GPUPolicy; retrying", "retryIn", pause)
			w.mark()
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// write counts once, and writes the statuses that have changed.
func (w *Writer) write(ctx context.Context) error {
	var policies v1alpha1.GPUPolicyList
	if err := w.client.List(ctx, &policies); err != nil {
		return fmt.Errorf("list GPUPolicies: %w", err)
	}
	reports, err := w.reports(ctx)
	if err != nil {
		return err
	}
	all := make([]*v1alpha1.GPUPolicy, len(policies.Items))
	for i := range policies.Items {
		all[i] = &policies.Items[i]
	}
	var failures []error
	statuses := statusesOf(all, reports)
	for _, p := range all {
		status := statuses[p.Name]
		if equality.Semantic.DeepEqual(p.Status, status) {
			continue
		}
		p.Status = status
		// A conflict means that the policy has changed since it was read. Its next count is due already.
		if err := w.client.Status().Update(ctx, p); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			failures = append(failures, fmt.Errorf("write the status of GPUPolicy %s: %w", p.Name, err))
		}
	}
	return errors.Join(failures...)
}

// reports are those of existing nodes.
func (w *Writer) reports(ctx context.Context) ([]nodeReport, error) {
	var nodes corev1.NodeList
	// The shared objects are only read, and a cluster has many nodes.
	if err := w.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	labels := make(map[string]map[string]string, len(nodes.Items))
	for i := range nodes.Items {
		labels[nodes.Items[i].Name] = nodes.Items[i].Labels
	}
	var list v1alpha1.GPUNodeList
	if err := w.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list GPUNodes: %w", err)
	}
	var reports []nodeReport
	for _, node := range list.Items {
		if own, exists := labels[node.Name]; exists {
			reports = append(reports, nodeReport{node: node.Name, labels: own, policy: node.Policy, withheld: node.Withheld})
		}
	}
	return reports, nil
}
