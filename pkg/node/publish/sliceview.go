package publish

import (
	"context"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	"k8s.io/client-go/kubernetes"
	resourcelisters "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
)

// sliceView caches one node's slices. The library's controller has a cache, too, but does not
// export it.
type sliceView struct {
	informer cache.SharedIndexInformer
}

// newSliceView calls changed after every change.
func newSliceView(client kubernetes.Interface, driver, nodeName string, changed func()) *sliceView {
	informer := resourceinformers.NewFilteredResourceSliceInformer(client, 0, nil, func(options *metav1.ListOptions) {
		options.FieldSelector = sliceSelector(driver, nodeName).String()
	})
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{ // fails after the end only
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	return &sliceView{informer}
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
	complete := v.informer.HasSynced()
	slices, err := resourcelisters.NewResourceSliceLister(v.informer.GetIndexer()).List(labels.Everything())
	return slices, complete && err == nil
}
