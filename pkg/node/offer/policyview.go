package offer

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/mica-gpu/mica/api/v1alpha1"
)

// policyView caches what decides which policy applies to a node: the policies, the node's labels and
// its device plugin's resources. It also has the node's annotations about repairs.
type policyView struct {
	policies, node cache.SharedIndexInformer
	started        time.Time
	decides        func()

	mu sync.Mutex
	// none: the API server has no such kind, or the plugin may not read it.
	none bool
	said string
}

// newPolicyView calls decides after every change that may change which policy applies. Without a
// client there are no policies.
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

// informerOf calls changed after every change, with nil for an object that was created or deleted.
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

// get returns false until both have been read. The node is nil if it does not exist.
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
		v.decides() // there may be none, and no event reports that
	}
	group.Wait()
	return ctx.Err()
}
