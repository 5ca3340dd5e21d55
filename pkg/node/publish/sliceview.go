package publish

import (
	"context"
	"slices"
	"sync"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// sliceView caches one node's slices. The library's controller has a cache, too, but does not
// export it.
type sliceView struct {
	store    cache.Store
	informer cache.Controller
}

// newSliceView calls changed after every change. Its slices share with the desired ones the maps
// that are equal, which would otherwise be a tenth of the plugin's memory.
func newSliceView(client kubernetes.Interface, driver, nodeName string, desired func() *resourceslice.DriverResources, changed func()) *sliceView {
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
		Transform: func(object any) (any, error) {
			if slice, is := object.(*resourceapi.ResourceSlice); is {
				object = share(slice, desired())
			}
			return object, nil
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { changed() },
			UpdateFunc: func(any, any) { changed() },
			DeleteFunc: func(any) { changed() },
		},
	})
	return &sliceView{store: store, informer: informer}
}

// share returns the slice with the desired maps of its devices that equal its own. Taints stay
// its own: the API server sets their times.
func share(read *resourceapi.ResourceSlice, desired *resourceslice.DriverResources) *resourceapi.ResourceSlice {
	own := *read
	own.Spec.Devices = slices.Clone(read.Spec.Devices)
	known := map[string]resourceapi.Device{}
	for _, slice := range desired.Pools[own.Spec.Pool.Name].Slices {
		for _, device := range slice.Devices {
			known[device.Name] = device
		}
	}
	for i := range own.Spec.Devices {
		device := &own.Spec.Devices[i]
		want := known[device.Name]
		shareEqual(&device.Attributes, want.Attributes)
		shareEqual(&device.Capacity, want.Capacity)
		shareEqual(&device.ConsumesCounters, want.ConsumesCounters)
	}
	return &own
}

func shareEqual[T any](read *T, want T) {
	if apiequality.Semantic.DeepEqual(*read, want) {
		*read = want
	}
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
	all := make([]*resourceapi.ResourceSlice, 0, len(objects))
	for _, object := range objects {
		if slice, ok := object.(*resourceapi.ResourceSlice); ok {
			all = append(all, slice)
		}
	}
	return all, true
}
