package offer

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
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

// rolesPatience is how long an API server that has just started may take to know
// who may read what: until then it refuses everybody.
const rolesPatience = 15 * time.Second

// policyView has what decides which policy applies to a node: the policies, and
// the node's labels and what a device plugin has there.
type policyView struct {
	policies, node cache.SharedIndexInformer
	started        time.Time
	decides        func()

	mu sync.Mutex
	// none tells that the API server has no policies, or shows none: there is no
	// definition of the kind, or nobody may read it.
	none bool
	said string
}

// newPolicyView calls decides after every change that may change what applies. Without
// a client there are no policies.
func newPolicyView(client Policies, nodes kubernetes.Interface, nodeName string, decides func()) *policyView {
	v := &policyView{decides: decides}
	if client == nil {
		return v
	}
	v.policies = informerOf(&v1alpha1.GPUPolicy{}, client, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: client.Watch,
	}, onlySpec, v.policyChanged)
	_ = v.policies.SetWatchErrorHandlerWithContext(v.notShown) // fails after the start only
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String()
	v.node = informerOf(&corev1.Node{}, nodes, cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return nodes.CoreV1().Nodes().List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return nodes.CoreV1().Nodes().Watch(ctx, options)
		},
	}, onlyDeciding, v.nodeChanged)
	return v
}

// informerOf calls changed after every change, with nil for an object that was not there
// or is not any more.
func informerOf(object runtime.Object, client any, lists cache.ListWatch, keep cache.TransformFunc, changed func(before, after any)) cache.SharedIndexInformer {
	informer := cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(&lists, client), object, 0, cache.Indexers{})
	_ = informer.SetTransform(keep) // these fail after the start only
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object) },
		UpdateFunc: changed,
		DeleteFunc: func(object any) { changed(object, nil) },
	})
	return informer
}

// onlySpec leaves out what grows with the cluster: what nodes made of a policy.
func onlySpec(object any) (any, error) {
	if policy, is := object.(*v1alpha1.GPUPolicy); is {
		policy.ManagedFields, policy.Status = nil, v1alpha1.GPUPolicyStatus{}
	}
	return object, nil
}

// onlyDeciding leaves out what decides nothing of a node's offer.
func onlyDeciding(object any) (any, error) {
	if node, is := object.(*corev1.Node); is {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Labels: node.Labels},
			Status:     corev1.NodeStatus{Capacity: devicePluginHas(node)},
		}, nil
	}
	return object, nil
}

func (v *policyView) policyChanged(before, after any) {
	v.mu.Lock()
	v.none, v.said = false, "" // there are some
	v.mu.Unlock()
	old, was := before.(*v1alpha1.GPUPolicy)
	now, is := after.(*v1alpha1.GPUPolicy)
	if !was || !is || old.UID != now.UID || old.Generation != now.Generation {
		v.decides()
	}
}

func (v *policyView) nodeChanged(before, after any) {
	old, was := before.(*corev1.Node)
	now, is := after.(*corev1.Node)
	if !was || !is || old.UID != now.UID || !maps.Equal(old.Labels, now.Labels) || !equality.Semantic.DeepEqual(old.Status.Capacity, now.Status.Capacity) {
		v.decides()
	}
}

// notShown is told that policies cannot be read, which is tried again. Without the
// definition there is no policy: the plugin may be there before it. One that may not be
// read any more stays in force.
func (v *policyView) notShown(ctx context.Context, r *cache.Reflector, err error) {
	absent, denied := apierrors.IsNotFound(err), apierrors.IsForbidden(err)
	if !absent && !denied {
		cache.DefaultWatchErrorHandler(ctx, r, err)
		return
	}
	v.mu.Lock()
	if news := err.Error() != v.said; news {
		v.said = err.Error()
		klog.FromContext(ctx).Info("GPUPolicies cannot be read, so this node goes by none that is new: install the CustomResourceDefinition gpupolicies.mica.gpu and the chart's ClusterRole", "reason", v.said)
	}
	none := absent || !v.policies.HasSynced() && time.Since(v.started) >= rolesPatience
	news := none && !v.none
	v.none = v.none || none
	v.mu.Unlock()
	if news {
		v.decides()
	}
}

// get is false until the API server has told about both. The node is nil when it does not
// exist.
func (v *policyView) get() (policies []*v1alpha1.GPUPolicy, node *corev1.Node, known bool) {
	if v.policies == nil {
		return nil, nil, true
	}
	for _, object := range v.node.GetStore().List() {
		node, _ = object.(*corev1.Node)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.none {
		return nil, node, v.node.HasSynced()
	}
	for _, object := range v.policies.GetStore().List() {
		if policy, is := object.(*v1alpha1.GPUPolicy); is {
			policies = append(policies, policy)
		}
	}
	return policies, node, v.policies.HasSynced() && v.node.HasSynced()
}

// run watches until ctx ends.
func (v *policyView) run(ctx context.Context) error {
	v.started = time.Now()
	var group sync.WaitGroup
	group.Go(func() { v.policies.RunWithContext(ctx) })
	group.Go(func() { v.node.RunWithContext(ctx) })
	if cache.WaitForCacheSync(ctx.Done(), v.policies.HasSynced, v.node.HasSynced) {
		v.decides() // there may be none, of which no event tells
	}
	group.Wait()
	return ctx.Err()
}
