package offer

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/policy"
)

const (
	// A policy of many nodes has one status, which all of them write after a change:
	// each waits a random part of statusSpread for every node that is in it. The API
	// server sends each write to all of them.
	statusSpread = time.Second
	// statusDelay gathers changes that come together.
	statusDelay = 200 * time.Millisecond
	// What one node writes at most, whatever happens.
	statusWritesPerSecond = 0.2
	statusWriteBurst      = 5
	statusCallTimeout     = 10 * time.Second
	firstStatusRetry      = time.Second
	maxStatusRetry        = 2 * time.Minute
	// goneNodeInterval is, on the average, how often a node looks whether another one that
	// is in a status still exists.
	goneNodeInterval = 10 * time.Minute
)

// policyReports writes into policies what this node made of them. It is for whoever
// reads; nothing waits for it.
type policyReports struct {
	client   Policies
	nodes    kubernetes.Interface
	nodeName string
	view     *policyView
	limiter  flowcontrol.RateLimiter

	mu sync.Mutex
	// decided tells that the node has looked at policies; applies is the one that it
	// is to go by, empty for none.
	decided bool
	applies string
	entry   v1alpha1.NodeStatus
	changed chan struct{} // holds a token when there may be something to write
}

func newPolicyReports(client Policies, nodes kubernetes.Interface, nodeName string) *policyReports {
	return &policyReports{
		client: client, nodes: nodes, nodeName: nodeName, changed: make(chan struct{}, 1),
		limiter: flowcontrol.NewTokenBucketRateLimiter(statusWritesPerSecond, statusWriteBurst),
	}
}

// set says which policy the node is to go by, nil for none, and why it cannot. It
// never blocks.
func (r *policyReports) set(selected *v1alpha1.GPUPolicy, refusal error) {
	r.mu.Lock()
	r.decided, r.applies, r.entry = true, "", v1alpha1.NodeStatus{Name: r.nodeName}
	if selected != nil {
		r.applies, r.entry.ObservedGeneration = selected.Name, selected.Generation
	}
	if refusal != nil {
		r.entry.Message = refusal.Error()
	}
	r.mu.Unlock()
	r.wake()
}

func (r *policyReports) wake() {
	select {
	case r.changed <- struct{}{}:
	default: // a wake-up is due already
	}
}

// run writes until ctx ends.
func (r *policyReports) run(ctx context.Context) error {
	if r.client == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return r.writeDue(ctx) })
	group.Go(func() error { return r.removeGone(ctx) })
	return group.Wait()
}

// writeDue writes what is due. What others write meanwhile does not shorten the wait
// after a failure: of many nodes that write at once, all but one fail.
func (r *policyReports) writeDue(ctx context.Context) error {
	retry := firstStatusRetry
	for {
		if due, nodes := r.due(); len(due) > 0 {
			if !sleep(ctx, statusDelay+rand.N(time.Duration(nodes+1)*statusSpread)) {
				return ctx.Err()
			}
			if !r.writeAll(ctx) {
				if !sleep(ctx, retry+rand.N(retry)) {
					return ctx.Err()
				}
				retry = min(2*retry, maxStatusRetry)
				continue
			}
			retry = firstStatusRetry
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.changed:
		}
	}
}

// removeGone removes entries of nodes that were deleted: nobody else does. Each node
// looks for one at a time, so that it does not matter how many there are.
func (r *policyReports) removeGone(ctx context.Context) error {
	for sleep(ctx, goneNodeInterval/2+rand.N(goneNodeInterval)) {
		name, node := r.another()
		if node == "" {
			continue
		}
		callCtx, cancel := context.WithTimeout(ctx, statusCallTimeout)
		_, err := r.nodes.CoreV1().Nodes().Get(callCtx, node, metav1.GetOptions{})
		cancel()
		if !apierrors.IsNotFound(err) {
			continue
		}
		if err := r.write(ctx, name, func(p *v1alpha1.GPUPolicy) (v1alpha1.GPUPolicyStatus, bool) {
			return policy.Report(p.Status, node, nil)
		}); err != nil {
			klog.FromContext(ctx).V(2).Info("A GPUPolicy's status still tells of a node that is gone", "policy", name, "node", node, "err", err)
		}
	}
	return ctx.Err()
}

// another is any entry of another node, with its policy; empty where there is none.
func (r *policyReports) another() (policyName, node string) {
	all, _, _ := r.view.get()
	seen := 0
	for _, p := range all {
		for _, entry := range p.Status.Nodes {
			if entry.Name == r.nodeName {
				continue
			}
			if seen++; rand.N(seen) == 0 { // each with the same probability
				policyName, node = p.Name, entry.Name
			}
		}
	}
	return policyName, node
}

// due are the policies whose status says something else of this node than is so,
// and the number of nodes in the longest of them.
func (r *policyReports) due() (due []*v1alpha1.GPUPolicy, nodes int) {
	all, _, known := r.view.get()
	if !known {
		return nil, 0
	}
	for _, p := range all {
		if _, news := r.report(p); news {
			due = append(due, p)
			nodes = max(nodes, len(p.Status.Nodes))
		}
	}
	return due, nodes
}

func (r *policyReports) report(p *v1alpha1.GPUPolicy) (v1alpha1.GPUPolicyStatus, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.decided {
		return p.Status, false
	}
	var entry *v1alpha1.NodeStatus
	if err := policy.Check(p); err != nil {
		entry = &v1alpha1.NodeStatus{ObservedGeneration: p.Generation, Message: err.Error()}
	} else if p.Name == r.applies {
		entry = &r.entry
	}
	return policy.Report(p.Status, r.nodeName, entry)
}

// writeAll tries everything that is due once and tells whether nothing is left.
func (r *policyReports) writeAll(ctx context.Context) (done bool) {
	due, _ := r.due()
	done = true
	for _, p := range due {
		if err := r.limiter.Wait(ctx); err != nil {
			return false
		}
		if err := r.write(ctx, p.Name, r.report); err != nil {
			done = false
			klog.FromContext(ctx).V(2).Info("A GPUPolicy's status does not tell of this node yet", "policy", p.Name, "err", err)
		}
	}
	return done
}

// write starts from what the API server has now: what was seen may be older than
// what another node has written since. A conflict is left to the next attempt.
func (r *policyReports) write(ctx context.Context, name string, report func(*v1alpha1.GPUPolicy) (v1alpha1.GPUPolicyStatus, bool)) error {
	ctx, cancel := context.WithTimeout(ctx, statusCallTimeout)
	defer cancel()
	current, err := r.client.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	status, news := report(current)
	if !news {
		return nil
	}
	current.Status = status
	_, err = r.client.UpdateStatus(ctx, current, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// sleep is false when ctx ends first.
func sleep(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}
