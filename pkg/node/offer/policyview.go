package offer

import (
	"context"
	"errors"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

const (
	// An API server that has no GPUPolicies, or does not show them, is asked again
	// after firstPolicyRetry, and then more and more slowly.
	firstPolicyRetry, policyRetry = time.Second, time.Minute
	// rolesPatience is how long an API server that has just started may take to know
	// who may read what: until then it refuses everybody.
	rolesPatience = 15 * time.Second
)

// policyView has what decides which policy applies to a node: the policies, and
// the node's labels.
type policyView struct {
	client   Policies
	nodes    kubernetes.Interface
	nodeName string
	policies mirror[*v1alpha1.GPUPolicy]
	node     mirror[*corev1.Node]
}

// newPolicyView calls decides after every change that may change what applies, and
// reported after every change of a policy, its status included. Without a client
// there are no policies.
func newPolicyView(client Policies, nodes kubernetes.Interface, nodeName string, decides, reported func()) *policyView {
	return &policyView{
		client: client, nodes: nodes, nodeName: nodeName,
		policies: mirror[*v1alpha1.GPUPolicy]{
			keep: func(p *v1alpha1.GPUPolicy) *v1alpha1.GPUPolicy {
				p.ManagedFields = nil // nobody reads them, and they are the larger part
				return p
			},
			changed: func(before, after *v1alpha1.GPUPolicy) {
				if before == nil || after == nil || before.UID != after.UID || before.Generation != after.Generation {
					decides()
				}
				reported()
			},
		},
		node: mirror[*corev1.Node]{
			keep: func(n *corev1.Node) *corev1.Node {
				return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}}
			},
			changed: func(before, after *corev1.Node) {
				if before == nil || after == nil || !maps.Equal(before.Labels, after.Labels) {
					decides()
				}
			},
		},
	}
}

// get is false until the API server has told about both.
func (v *policyView) get() (policies []*v1alpha1.GPUPolicy, labels map[string]string, known bool) {
	if v.client == nil {
		return nil, nil, true
	}
	policies, answered := v.policies.list()
	nodes, found := v.node.list()
	for _, node := range nodes {
		labels = node.Labels
	}
	return policies, labels, answered && found
}

// run watches until ctx ends.
func (v *policyView) run(ctx context.Context) error {
	if v.client == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		v.watchNode(ctx)
		return ctx.Err()
	})
	group.Go(func() error { return v.watchPolicies(ctx) })
	return group.Wait()
}

func (v *policyView) watchNode(ctx context.Context) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, v.nodeName).String()
	keepMirrored(ctx, &corev1.Node{}, &v.node, v.nodes, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return v.nodes.CoreV1().Nodes().List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return v.nodes.CoreV1().Nodes().Watch(ctx, options)
		},
	})
}

func keepMirrored(ctx context.Context, kind runtime.Object, store cache.ReflectorStore, client any, lists cache.ListWatch) {
	logger := klog.FromContext(ctx)
	cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(&lists, client), kind, store,
		cache.ReflectorOptions{Logger: &logger}).RunWithContext(ctx)
}

// errNoPolicies ends a watch that the API server will not have.
var errNoPolicies = errors.New("the API server does not show GPUPolicies")

// watchPolicies asks again where there are no policies to watch: the plugin may be
// there before their definition.
func (v *policyView) watchPolicies(ctx context.Context) error {
	said, retry, start := "", firstPolicyRetry, time.Now()
	for {
		began := time.Now()
		err := v.watchPoliciesOnce(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// Without the definition there is no policy. One that may not be read any more
		// stays in force.
		_, answered := v.policies.list()
		if apierrors.IsNotFound(err) || !answered && time.Since(start) >= rolesPatience {
			if err := v.policies.Replace(nil, ""); err != nil {
				return err
			}
		}
		if time.Since(began) > policyRetry { // they could be read meanwhile
			retry = firstPolicyRetry
		}
		if err.Error() != said {
			said = err.Error()
			klog.FromContext(ctx).Info("GPUPolicies cannot be read, so this node goes by none that is new: install the CustomResourceDefinition gpupolicies.mica.gpu and the chart's ClusterRole", "reason", said)
		}
		if !sleep(ctx, retry) {
			return ctx.Err()
		}
		retry = min(2*retry, policyRetry)
	}
}

// watchPoliciesOnce returns when the API server says that it has no policies, or
// none for us. What may pass is tried again here.
func (v *policyView) watchPoliciesOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	final := func(err error) error {
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			cancel(err)
		}
		return err
	}
	keepMirrored(ctx, &v1alpha1.GPUPolicy{}, &v.policies, v.client, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			list, err := v.client.List(ctx, options)
			return list, final(err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			watching, err := v.client.Watch(ctx, options)
			return watching, final(err)
		},
	})
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errNoPolicies
}
