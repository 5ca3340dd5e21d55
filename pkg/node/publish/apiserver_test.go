package publish

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
	"github.com/mica-gpu/mica/test/fixture/apiserver"
)

// apiServer is one whose answers and contents the tests of the publisher change.
type apiServer struct{ *apiserver.Server }

func newAPIServer() *apiServer { return &apiServer{apiserver.New()} }

// failTrials makes the next dry runs fail.
func (s *apiServer) failTrials(times int64) {
	s.changeTrials(times, func(*resourceapi.ResourceSlice) error { return apiserver.ErrAway })
}

// dropTrials makes the next dry runs drop counters.
func (s *apiServer) dropTrials(times int64) {
	s.changeTrials(times, func(slice *resourceapi.ResourceSlice) error {
		slice.Spec.SharedCounters = nil
		return nil
	})
}

func (s *apiServer) changeTrials(times int64, change func(*resourceapi.ResourceSlice) error) {
	var changed atomic.Int64
	s.PrependReactor("create", "resourceslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if !apiserver.IsTrial(action) || changed.Add(1) > times {
			return false, nil, nil
		}
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		err := change(slice)
		return true, slice, err
	})
}

// dropCounters makes the API server one without partitionable devices.
func (s *apiServer) dropCounters() {
	drop := func(action clienttesting.Action) (bool, runtime.Object, error) {
		slice := action.(clienttesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		slice.Spec.SharedCounters = nil
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].ConsumesCounters = nil
		}
		return false, nil, nil
	}
	s.PrependReactor("create", "resourceslices", drop)
	s.PrependReactor("update", "resourceslices", drop)
}

// writes lists the writes of slices until now.
func (s *apiServer) writes() []string {
	var verbs []string
	for _, action := range s.Actions() {
		if action.GetResource().Resource == "resourceslices" && !apiserver.IsTrial(action) && slices.Contains([]string{"create", "update", "patch", "delete", "delete-collection"}, action.GetVerb()) {
			verbs = append(verbs, action.GetVerb())
		}
	}
	return verbs
}

// has returns an error unless the API server has exactly the resources.
func (s *apiServer) has(t testing.TB, want resourceslice.DriverResources) error {
	t.Helper()
	if items := s.Slices(t); !matches(ptrs(items), want) {
		return fmt.Errorf("the API server has %d slices: %v", len(items), items)
	}
	return nil
}

// wipe removes the node's slices, as kubelet does when it starts.
func (s *apiServer) wipe(t testing.TB) {
	t.Helper()
	for _, item := range s.Slices(t) {
		if err := s.Tracker().Delete(apiserver.SliceResource, "", item.Name); err != nil {
			t.Fatal(err)
		}
	}
}

// resources are those of a node with that many GPUs.
func resources(t testing.TB, gpus int) resourceslice.DriverResources {
	t.Helper()
	return resourcesOf(t, gpus, gpu.GPU{})
}

// partitionable are those of a node with that many GPUs that can be partitioned:
// a slice of whole GPUs, one a GPU, and one of counters for every eight.
func partitionable(t testing.TB, gpus int) resourceslice.DriverResources {
	t.Helper()
	h100, _ := catalog.BoardByName("h100-sxm-80gb")
	return resourcesOf(t, gpus, gpu.GPU{MIG: gpu.MIGDisabled, MIGSwitchable: true, Profiles: h100.MIG.GPUProfiles()})
}

func resourcesOf(t testing.TB, gpus int, board gpu.GPU) resourceslice.DriverResources {
	t.Helper()
	node := gpu.Node{DriverVersion: "580.95.05", CUDAVersion: "13.0"}
	for minor := range gpus {
		board.Minor, board.UUID = minor, fmt.Sprint("GPU-", minor)
		node.GPUs = append(node.GPUs, board)
	}
	pool := slice.Pool(node, gpu.Shapes(node.GPUs, gpu.ByDefault), nil)
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{fixture.NodeName: pool}}
}
