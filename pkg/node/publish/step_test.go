package publish

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

// sick are the resources of a node with eight GPUs that can be partitioned, some of them faulty.
func sick(t testing.TB, minors ...int) resourceslice.DriverResources {
	t.Helper()
	h100, _ := catalog.BoardByName("h100-sxm-80gb")
	node := gpu.Node{DriverVersion: "580.95.05", CUDAVersion: "13.0"}
	for minor := range 8 {
		node.GPUs = append(node.GPUs, gpu.GPU{Minor: minor, UUID: fmt.Sprint("GPU-", minor), MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: h100.MIG.GPUProfiles()})
	}
	shapes, taints := gpu.Shapes(node.GPUs, gpu.ByDefault), slice.Taints{}
	for _, minor := range minors {
		taints.AddGPU(fmt.Sprint("GPU-", minor), shapes, resourceapi.DeviceTaint{Key: "example.com/sick", Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{fixture.NodeName: slice.Pool(node, shapes, taints)}}
}

// expectOneGeneration fails when a write makes the pool incomplete, if only until the next.
func (s *apiServer) expectOneGeneration(t *testing.T, generation int64) {
	s.PrependReactor("update", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		written := action.(clienttesting.UpdateAction).GetObject().(*resourceapi.ResourceSlice)
		if got := written.Spec.Pool.Generation; got != generation {
			t.Errorf("slice %s is written with generation %d, the others have %d", written.Name, got, generation)
		}
		return false, nil, nil
	})
}

// One GPU's fault, and its end, changes the slice of entire GPUs and that of its partitions. Neither
// makes the scheduler wait for the other.
func TestASickGPUCostsTwoWrites(t *testing.T) {
	for name, c := range map[string]struct {
		minors   []int
		failures int64
		updates  int
	}{
		"one GPU":              {[]int{3}, 0, 2},
		"three GPUs":           {[]int{0, 3, 7}, 0, 4},
		"writes fail":          {[]int{3}, 3, 2 + 3},
		"all GPUs of the node": {[]int{0, 1, 2, 3, 4, 5, 6, 7}, 0, 9},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				api := newAPIServer()
				api.stampTaints()
				p := publishing(t, api, sick(t))
				after(settled)
				api.expectOneGeneration(t, 1)
				writes := api.writes()
				for _, want := range []resourceslice.DriverResources{sick(t, c.minors...), sick(t)} {
					api.Fail("update", "resourceslices", c.failures)
					p.Set(want)
					if took := untilPublished(t, api, p, want); c.failures == 0 && took > 100*time.Millisecond {
						t.Errorf("it took %s", took)
					}
					writes = append(writes, slices.Repeat([]string{"update"}, c.updates)...)
					check(t, api, p, want, writes...)
					after(settled)
					check(t, api, p, want, writes...)
				}
			})
		})
	}
}

// A fault that came while no plugin ran costs no more.
func TestAGPUThatIsSickAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		once(t, api, sick(t))
		api.expectOneGeneration(t, 1)
		writes := append(api.writes(), "update", "update")
		p := publishing(t, api, sick(t, 5))
		after(settled)
		check(t, api, p, sick(t, 5), writes...)
	})
}

// What else changes needs a generation, whatever is tainted.
func TestOnlyTaintsAreWrittenSliceBySlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		p := publishing(t, api, sick(t))
		after(settled)
		want := sick(t, 3)
		for _, s := range want.Pools[fixture.NodeName].Slices[:2] {
			delete(s.Devices[0].Attributes, "index")
		}
		p.Set(want)
		untilPublished(t, api, p, want)
		if got := api.Slices(t)[0].Spec.Pool.Generation; got != 2 {
			t.Errorf("the pool has generation %d, want 2", got)
		}
	})
}

// The fault of one GPU while that of another is being written.
func TestAFaultWhileAnotherIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := newAPIServer()
		p := publishing(t, api, sick(t))
		after(settled)
		api.expectOneGeneration(t, 1)
		api.PrependReactor("update", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
			p.Set(sick(t, 3, 4))
			return false, nil, nil
		})
		p.Set(sick(t, 3))
		after(settled)
		if err := api.has(t, sick(t, 3, 4)); err != nil || !p.Published() {
			t.Errorf("published %t: %v", p.Published(), err)
		}
	})
}
