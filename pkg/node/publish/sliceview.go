package publish

import (
	"context"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// sliceView is the API server's current view of one node's slices. The
// controller has one too, but shows it to nobody.
type sliceView struct {
	store    cache.Store
	informer cache.Controller
}

// newSliceView calls changed after every change.
func newSliceView(client kubernetes.Interface, driver, nodeName string, changed func()) *sliceView {
	selector := sliceSelector(driver, nodeName).String()
	store, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				options.FieldSelector = selector
				return client.ResourceV1().ResourceSlices().List(ctx, options)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				options.FieldSelector = selector
				return client.ResourceV1().ResourceSlices().Watch(ctx, options)
			},
		}, client),
		ObjectType: &resourceapi.ResourceSlice{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(any, any) { changed() },
			DeleteFunc: func(any) { changed() },
		},
	})
	return &sliceView{store: store, informer: informer}
}

// start watches until ctx ends or stop is called.
func (v *sliceView) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { v.informer.RunWithContext(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// list returns the slices, and whether the view is complete.
func (v *sliceView) list() ([]*resourceapi.ResourceSlice, bool) {
	if !v.informer.HasSynced() {
		return nil, false
	}
	objects := v.store.List()
	slices := make([]*resourceapi.ResourceSlice, 0, len(objects))
	for _, object := range objects {
		if slice, ok := object.(*resourceapi.ResourceSlice); ok {
			slices = append(slices, slice)
		}
	}
	return slices, true
}
