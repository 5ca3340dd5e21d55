package publish

import (
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/watchlist"

	"github.com/mica-gpu/mica/test/fixture"
)

// What is read shares the maps of what is desired, whether it was listed or watched, except
// for a device that differs.
func TestSlicesThatAreReadShareWhatIsDesired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, want := newAPIServer(), partitionable(t, 1)
		once(t, api, want)()
		p := New(api, fixture.Driver, fixture.NodeName)
		p.Set(want)
		events, err := p.client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		defer events.Stop()
		list, err := p.client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			t.Fatalf("listed %+v, %v", list, err)
		}
		for i := range list.Items {
			listed := &list.Items[i]
			expectShared(t, p, listed, "")
			if len(listed.Spec.Devices) == 0 {
				continue
			}
			changed := listed.DeepCopy()
			changed.Spec.Devices[0].Attributes["type"] = resourceapi.DeviceAttribute{StringValue: new("other")}
			if _, err := p.client.ResourceV1().ResourceSlices().Update(t.Context(), changed, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			event := <-events.ResultChan()
			for event.Type != watch.Modified {
				event = <-events.ResultChan()
			}
			expectShared(t, p, event.Object.(*resourceapi.ResourceSlice), changed.Spec.Devices[0].Name)
		}
	})
}

// expectShared looks for the desired maps in all devices but one.
func expectShared(t *testing.T, p *Publisher, read *resourceapi.ResourceSlice, except string) {
	t.Helper()
	for _, s := range p.get().Pools[read.Spec.Pool.Name].Slices {
		for _, want := range s.Devices {
			for _, device := range read.Spec.Devices {
				if device.Name != want.Name {
					continue
				}
				shared := reflect.ValueOf(device.Attributes).Pointer() == reflect.ValueOf(want.Attributes).Pointer()
				if shared != (device.Name != except) {
					t.Errorf("%s: attributes are shared: %t", device.Name, shared)
				}
				if reflect.ValueOf(device.Capacity).Pointer() != reflect.ValueOf(want.Capacity).Pointer() {
					t.Errorf("%s has a capacity of its own", device.Name)
				}
			}
		}
	}
}

// Since when a device is tainted, the API server knows alone.
func TestTaintsThatAreReadStayTheirOwn(t *testing.T) {
	since := metav1.NewTime(time.Unix(1e9, 0))
	taint := resourceapi.DeviceTaint{Key: "k", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	want := channels(t, taint)
	p := New(newAPIServer(), fixture.Driver, fixture.NodeName)
	p.Set(want)
	read := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{
		Pool: resourceapi.ResourcePool{Name: "channels"}, Devices: want.DeepCopy().Pools["channels"].Slices[0].Devices,
	}}
	read.Spec.Devices[0].Taints[0].TimeAdded = &since
	sharedClient{desired: p.get}.share(read)
	expectShared(t, p, read, "")
	if got := read.Spec.Devices[0].Taints[0].TimeAdded; !got.Equal(&since) {
		t.Errorf("the device is tainted since %v, want %v", got, since)
	}
}

// A client for which lists cannot be watched stays one.
func TestTheSharedClientSaysWhatTheClientCan(t *testing.T) {
	for _, client := range []kubernetes.Interface{newAPIServer(), &kubernetes.Clientset{}} {
		want := watchlist.DoesClientNotSupportWatchListSemantics(client)
		if got := watchlist.DoesClientNotSupportWatchListSemantics(sharedClient{Interface: client}); got != want {
			t.Errorf("%T: got %t, want %t", client, got, want)
		}
	}
}
