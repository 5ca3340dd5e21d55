package publish

import (
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/utils/ptr"

	"github.com/mica-gpu/mica/test/fixture"
)

// channels are a pool of devices that are no GPU, beside the node's GPUs.
func channels(t *testing.T, taints ...resourceapi.DeviceTaint) resourceslice.DriverResources {
	t.Helper()
	both := resources(t, 2)
	kind := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("channel")}}
	both.Pools["channels"] = resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{
		{Name: "channel-0", Attributes: kind, Taints: taints}, {Name: "channel-1", Attributes: kind},
	}}}}
	return both
}

// The publisher publishes devices of any kind.
func TestAPoolThatIsNoGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, want := newAPIServer(), channels(t)
		p := publishing(t, api, want)
		check(t, api, p, want, "create", "create")
		after(settled)
		check(t, api, p, want, "create", "create")
		api.wipe(t)
		untilPublished(t, api, p, want)
		p.Set(resources(t, 2))
		after(settled)
		if err := api.has(t, resources(t, 2)); err != nil || !p.Published() {
			t.Errorf("after the channels are gone: published %t: %v", p.Published(), err)
		}
	})
}

// A device with counters is not offered if the API server drops them.
func TestWithoutCountersNoDeviceIsAllocatedTwice(t *testing.T) {
	all := channels(t)
	pool := all.Pools["channels"]
	for i := range pool.Slices[0].Devices {
		pool.Slices[0].Devices[i].ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: "switch"}}
	}
	pool.Slices = append(pool.Slices, resourceslice.Slice{SharedCounters: []resourceapi.CounterSet{{Name: "switch"}}})
	all.Pools["channels"] = pool
	api := newAPIServer()
	api.dropCounters()
	kept, _ := New(api, fixture.Driver, fixture.NodeName).publishable(t.Context(), "uid", &all)
	if got := kept.Pools["channels"].Slices; len(got) != 1 || len(got[0].Devices) != 0 {
		t.Errorf("got %+v", got)
	}
	if got := kept.Pools[fixture.NodeName].Slices; len(got) != 1 || len(got[0].Devices) != 2 {
		t.Errorf("got %+v of the GPUs", got)
	}
}

// stampTaints is the API server's part in TimeAdded.
func (s *apiServer) stampTaints() {
	stamp := func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		for i := range slice.Spec.Devices {
			for j := range slice.Spec.Devices[i].Taints {
				if taint := &slice.Spec.Devices[i].Taints[j]; taint.TimeAdded == nil {
					taint.TimeAdded = ptr.To(metav1.Now().Rfc3339Copy())
				}
			}
		}
		return false, nil, nil
	}
	s.PrependReactor("create", "resourceslices", stamp)
	s.PrependReactor("update", "resourceslices", stamp)
}

// times are when the taints of a device were added, by their keys.
func (s *apiServer) times(t *testing.T, name string) map[string]time.Time {
	t.Helper()
	times := map[string]time.Time{}
	for _, slice := range s.Slices(t) {
		for _, device := range slice.Spec.Devices {
			for _, taint := range device.Taints {
				if device.Name == name {
					times[taint.Key] = taint.TimeAdded.Time
				}
			}
		}
	}
	return times
}

// Tolerations count from TimeAdded: what else changes must not begin them anew.
func TestATaintKeepsItsTime(t *testing.T) {
	one := resourceapi.DeviceTaint{Key: "example.com/one", Effect: resourceapi.DeviceTaintEffectNoSchedule}
	two := resourceapi.DeviceTaint{Key: "example.com/two", Value: "hot", Effect: resourceapi.DeviceTaintEffectNoExecute}
	synctest.Test(t, func(t *testing.T) {
		own := two
		own.TimeAdded = ptr.To(metav1.NewTime(time.Now().Add(-time.Hour).Truncate(time.Second)))
		api := newAPIServer()
		api.stampTaints()
		p := publishing(t, api, channels(t, one))
		after(10 * time.Second)
		first := api.times(t, "channel-0")["example.com/one"]
		want := channels(t, one, own)
		p.Set(want)
		after(10 * time.Second)
		times := api.times(t, "channel-0")
		if !times["example.com/one"].Equal(first) || !times["example.com/two"].Equal(own.TimeAdded.Time) {
			t.Errorf("got %v, want %v for the first and %v for the second", times, first, own.TimeAdded)
		}
		writes := len(api.writes())
		after(settled)
		if got := api.writes(); len(got) != writes || !p.Published() {
			t.Errorf("it is written again: %q; published: %t", got[writes:], p.Published())
		}
		api.wipe(t)
		untilPublished(t, api, p, want)
		if times := api.times(t, "channel-0"); !times["example.com/two"].Equal(own.TimeAdded.Time) {
			t.Errorf("after a wipe: got %v, want %v for the second", times, own.TimeAdded)
		}
	})
}
