package publish

import (
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

func TestWhatTheAPIServerDropsIsNotPublished(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	node.GPUs = node.GPUs[:1]
	policy := gpu.Policy{Whole: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}, MPS: &gpu.MPS{Clients: 2}}
	pool := slice.Pool(node, gpu.Shapes(node.GPUs, func(gpu.GPU) gpu.Policy { return policy }), slice.Taints{"gpu-0-mps": {slice.Withdrawn()}})
	all := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{fixture.NodeName: pool}}
	for name, test := range map[string]struct {
		drop func(*resourceapi.ResourceSliceSpec)
		want []string
	}{
		"nothing": {func(*resourceapi.ResourceSliceSpec) {}, []string{"gpu-0", "gpu-0-timeslice", "-gpu-0-mps"}},
		"shares": {func(spec *resourceapi.ResourceSliceSpec) {
			for i := range spec.Devices {
				spec.Devices[i].AllowMultipleAllocations = nil
			}
		}, []string{"gpu-0"}},
		"taints": {func(spec *resourceapi.ResourceSliceSpec) {
			for i := range spec.Devices {
				spec.Devices[i].Taints = nil
			}
		}, []string{"gpu-0", "gpu-0-timeslice", "gpu-0-mps"}},
		"counters": {func(spec *resourceapi.ResourceSliceSpec) { spec.SharedCounters = nil }, []string{"gpu-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			api := newAPIServer()
			trials := 0
			api.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
				trials++
				answer := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice).DeepCopy()
				test.drop(&answer.Spec)
				return true, answer, nil
			})
			p := New(api, fixture.Driver, fixture.NodeName)
			var got []string
			var retryAt time.Time
			for range 2 {
				got = nil
				var kept *resourceslice.DriverResources
				kept, retryAt = p.publishable(t.Context(), "uid", &all)
				for _, s := range kept.Pools[fixture.NodeName].Slices {
					for _, device := range s.Devices {
						if len(device.Taints) > 0 {
							device.Name = "-" + device.Name
						}
						got = append(got, device.Name)
					}
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if trials > len(p.features) {
				t.Errorf("there were %d trials", trials)
			}
			if missing := !retryAt.IsZero(); missing != (name != "nothing") {
				t.Errorf("there is another trial: %t", missing)
			}
		})
	}
	if len(pool.Slices[0].Devices) != 3 || len(pool.Slices[0].Devices[2].Taints) != 1 {
		t.Error("the input has changed")
	}
}

func TestDroppedFieldsMakeEveryFeatureBeTriedOnce(t *testing.T) {
	node := fixture.Node(t, "p5.48xlarge")
	policy := gpu.Policy{Whole: true, TimeSlicing: &gpu.TimeSlicing{Replicas: 4, Interval: gpu.DefaultInterval}}
	pool := slice.Pool(node, gpu.Shapes(node.GPUs[:1], func(gpu.GPU) gpu.Policy { return policy }), nil)
	all := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{fixture.NodeName: pool}}
	api := newAPIServer()
	trials := 0
	api.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		trials++
		return true, action.(clienttesting.CreateAction).GetObject(), nil
	})
	p := New(api, fixture.Driver, fixture.NodeName)
	p.publishable(t.Context(), "uid", &all)
	first := trials
	p.handleError(t.Context(), &resourceslice.DroppedFieldsError{PoolName: fixture.NodeName, DesiredSlice: &resourceapi.ResourceSlice{}, ActualSlice: &resourceapi.ResourceSlice{}}, "")
	for range 2 {
		p.publishable(t.Context(), "uid", &all)
	}
	if first == 0 || trials != 2*first {
		t.Errorf("there were %d trials at first and %d in all", first, trials)
	}
}
