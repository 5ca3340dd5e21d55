package offer

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	coreinformers "k8s.io/client-go/informers/core/v1"
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
	// reported is the last error that was logged.
	reported string
}

// newPolicyView calls decides after every change that may change which policy applies. Without a
// client there are no policies.
func newPolicyView(client Policies, nodes kubernetes.Interface, nodeName string, decides func()) *policyView {
	v := &policyView{decides: decides}
	if client == nil {
		return v
	}
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: client.Watch,
	}
	v.policies = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, client), &v1alpha1.GPUPolicy{}, 0, nil)
	follow(v.policies, onlySpec, v.policyChanged)
	_ = v.policies.SetWatchErrorHandlerWithContext(v.notShown) // fails after the start only
	v.node = coreinformers.NewFilteredNodeInformer(nodes, 0, nil, func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, nodeName).String()
	})
	follow(v.node, onlyDeciding, v.nodeChanged)
	return v
}

// follow calls changed after every change, with nil for an object that was created or deleted.
func follow(informer cache.SharedIndexInformer, keep cache.TransformFunc, changed func(before, after any)) {
	_ = informer.SetTransform(keep) // these fail after the start only
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object) },
		UpdateFunc: changed,
		DeleteFunc: func(object any) { changed(object, nil) },
	})
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
