package offer

import (
	"context"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/excerpt"
	"github.com/mica-gpu/mica/pkg/node/wake"
)

const (
	// reportSpread spreads the reports after a change of policy: 5,000 nodes make 1,000 small writes per
	// second, and the controller watches each.
	reportSpread = 5 * time.Second
	// reportAgain is the interval at which an unchanged report is repeated, in case it was deleted.
	reportAgain       = 30 * time.Minute
	reportCallTimeout = 10 * time.Second
)

// reportRetries have jitter, because all nodes notice an outage of the API server at once.
var reportRetries = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Cap: 2 * time.Minute, Steps: math.MaxInt}

// report writes the node's GPUNode in the background.
type report struct {
	client   Policies
	nodeName string

	mu      sync.Mutex
	desired *v1alpha1.GPUNode // nil until the node has read the policies
	changed wake.Signal       // holds a token when desired has changed
}

// set replaces the report: the verdict about the node's policy, nil for none, and why the node offers
// nothing, nil if it does. It never blocks.
func (r *report) set(node types.UID, verdict *v1alpha1.NodePolicy, withheld error) {
	desired := &v1alpha1.GPUNode{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "GPUNode"},
		ObjectMeta: metav1.ObjectMeta{
			Name:            r.nodeName,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: r.nodeName, UID: node}},
		},
		Policy: verdict,
	}
	if withheld != nil {
		desired.Withheld = excerpt.Of(withheld.Error(), v1alpha1.MaxMessageLength)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !equality.Semantic.DeepEqual(desired, r.desired) {
		r.desired = desired
		r.changed.Wake()
	}
}

func (r *report) get() *v1alpha1.GPUNode {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.desired
}

// run writes until ctx ends.
func (r *report) run(ctx context.Context) error {
	retry := reportRetries.DelayFunc()
	for {
		pause := reportAgain + rand.N(reportAgain)
		if r.get() != nil {
			if !sleep(ctx, rand.N(reportSpread)) {
				return ctx.Err()
			}
			if err := r.write(ctx); err != nil {
				pause = retry()
				klog.FromContext(ctx).V(2).Info("Cannot write this node's GPUNode; retrying", "err", err, "retryIn", pause)
			} else {
				retry = reportRetries.DelayFunc()
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.changed:
		case <-time.After(pause):
		}
	}
}

func (r *report) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reportCallTimeout)
	defer cancel()
	return r.client.Report(ctx, r.get())
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(duration):
		return true
	}
}
