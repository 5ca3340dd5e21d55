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
			var askAgain time.Time
			for range 2 {
				got = nil
				var kept *resourceslice.DriverResources
				kept, askAgain = p.publishable(t.Context(), "uid", &all)
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
				t.Errorf("the API server was asked %d times", trials)
			}
			if missing := !askAgain.IsZero(); missing != (name != "nothing") {
				t.Errorf("it is asked again: %t", missing)
			}
		})
	}
	if len(pool.Slices[0].Devices) != 3 || len(pool.Slices[0].Devices[2].Taints) != 1 {
		t.Error("what was given is changed")
	}
}
