package publish

import (
	"context"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/util/watchlist"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// sharedClient reads slices whose devices share with what is desired what they have in common
// with it. The library's controller and the Publisher have a copy of all slices each, which would be
// a third of the plugin's heap.
type sharedClient struct {
	kubernetes.Interface
	desired func() *resourceslice.DriverResources
}

// ResourceV1 implements kubernetes.Interface.
func (c sharedClient) ResourceV1() resourceclient.ResourceV1Interface {
	return sharedResources{c.Interface.ResourceV1(), c.share}
}

// IsWatchListSemanticsUnSupported says what the client below says to a reflector.
func (c sharedClient) IsWatchListSemanticsUnSupported() bool {
	return watchlist.DoesClientNotSupportWatchListSemantics(c.Interface)
}

type sharedResources struct {
	resourceclient.ResourceV1Interface
	share func(...*resourceapi.ResourceSlice)
}

func (r sharedResources) ResourceSlices() resourceclient.ResourceSliceInterface {
	return sharedSlices{r.ResourceV1Interface.ResourceSlices(), r.share}
}

type sharedSlices struct {
	resourceclient.ResourceSliceInterface
	share func(...*resourceapi.ResourceSlice)
}

func (s sharedSlices) List(ctx context.Context, options metav1.ListOptions) (*resourceapi.ResourceSliceList, error) {
	list, err := s.ResourceSliceInterface.List(ctx, options)
	if err == nil {
		s.share(ptrs(list.Items)...)
	}
	return list, err
}

func (s sharedSlices) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := s.ResourceSliceInterface.Watch(ctx, options)
	if err != nil {
		return nil, err
	}
	results := make(chan watch.Event)
	shared := watch.NewProxyWatcher(results)
	go func() {
		defer close(results)
		defer events.Stop()
		s.pass(events.ResultChan(), results, shared.StopChan())
	}()
	return shared, nil
}

// pass ends with the events, or when nobody wants more.
func (s sharedSlices) pass(events <-chan watch.Event, results chan<- watch.Event, stop <-chan struct{}) {
	for {
		select {
		case event, open := <-events:
			if !open {
				return
			}
			if slice, is := event.Object.(*resourceapi.ResourceSlice); is {
				// Other watches may have the same object.
				own := *slice
				own.Spec.Devices = slices.Clone(slice.Spec.Devices)
				s.share(&own)
				event.Object = &own
			}
			select {
			case results <- event:
			case <-stop:
				return
			}
		case <-stop:
			return
		}
	}
}

// share lets devices have the desired maps that equal theirs. Taints stay their own: the API
// server knows since when they are.
func (c sharedClient) share(read ...*resourceapi.ResourceSlice) {
	desired := c.desired()
	if desired == nil {
		return
	}
	for _, slice := range read {
		known := map[string]resourceapi.Device{}
		for _, s := range desired.Pools[slice.Spec.Pool.Name].Slices {
			for _, device := range s.Devices {
				known[device.Name] = device
			}
		}
		for i := range slice.Spec.Devices {
			device := &slice.Spec.Devices[i]
			want := known[device.Name]
			shareEqual(&device.Attributes, want.Attributes)
			shareEqual(&device.Capacity, want.Capacity)
			shareEqual(&device.ConsumesCounters, want.ConsumesCounters)
		}
	}
}

func shareEqual[T any](read *T, want T) {
	if apiequality.Semantic.DeepEqual(*read, want) {
		*read = want
	}
}
