package driver

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/mica-gpu/mica/pkg/catalog"
	"github.com/mica-gpu/mica/pkg/gpu"
	"github.com/mica-gpu/mica/pkg/slice"
	"github.com/mica-gpu/mica/test/fixture"
)

var (
	errAway       = errors.New("connection refused")
	sliceResource = resourceapi.SchemeGroupVersion.WithResource("resourceslices")
)

// apiServer is client-go's fake with what the slice controller needs of a real
// one: generated names and growing resource versions.
type apiServer struct {
	*fake.Clientset
	versions atomic.Int64
}

func newAPIServer(objects ...runtime.Object) *apiServer {
	s := &apiServer{Clientset: fake.NewClientset(append([]runtime.Object{&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fixture.NodeName, UID: "uid-node"},
	}}, objects...)...)}
	for _, verb := range []string{"create", "update"} {
		s.PrependReactor(verb, "resourceslices", s.stamp)
	}
	s.PrependReactor("create", "resourceslices", tryOnly)
	return s
}

func isTrial(action clienttesting.Action) bool {
	create, ok := action.(clienttesting.CreateActionImpl)
	return ok && len(create.CreateOptions.DryRun) > 0
}

// tryOnly answers a dry run, which client-go's fake would store.
func tryOnly(action clienttesting.Action) (bool, runtime.Object, error) {
	return isTrial(action), action.(clienttesting.CreateAction).GetObject(), nil
}

// failTrials makes the next dry runs fail.
func (s *apiServer) failTrials(times int64) {
	s.changeTrials(times, func(*resourceapi.ResourceSlice) error { return errAway })
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
		if !isTrial(action) || changed.Add(1) > times {
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

func (s *apiServer) stamp(action clienttesting.Action) (bool, runtime.Object, error) {
	written, ok := action.(interface{ GetObject() runtime.Object })
	if !ok {
		return false, nil, nil
	}
	object, err := meta.Accessor(written.GetObject())
	if err != nil {
		return true, nil, err
	}
	version := s.versions.Add(1)
	object.SetResourceVersion(strconv.FormatInt(version, 10))
	if object.GetName() == "" {
		object.SetName(fmt.Sprintf("%s%05d", object.GetGenerateName(), version))
	}
	return false, nil, nil // and on to the store
}

// fail makes the next calls of a kind fail.
func (s *apiServer) fail(verb, resource string, times int64) {
	var failed atomic.Int64
	s.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		if failed.Add(1) > times {
			return false, nil, nil
		}
		return true, nil, errAway
	})
}

// writes lists the writes of slices until now.
func (s *apiServer) writes() []string {
	var verbs []string
	for _, action := range s.Actions() {
		if action.GetResource().Resource == "resourceslices" && !isTrial(action) && slices.Contains([]string{"create", "update", "patch", "delete", "delete-collection"}, action.GetVerb()) {
			verbs = append(verbs, action.GetVerb())
		}
	}
	return verbs
}

// slices looks into the store itself.
func (s *apiServer) slices(t testing.TB) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := s.Tracker().List(sliceResource, resourceapi.SchemeGroupVersion.WithKind("ResourceSlice"), "")
	if err != nil {
		t.Fatal(err)
	}
	return list.(*resourceapi.ResourceSliceList).Items
}

// has tells what of the resources the API server does not have.
func (s *apiServer) has(t testing.TB, want resourceslice.DriverResources) error {
	t.Helper()
	if items := s.slices(t); !matches(ptrs(items), want) {
		return fmt.Errorf("the API server has %d slices: %v", len(items), items)
	}
	return nil
}

// wipe removes the node's slices, as kubelet does when it starts.
func (s *apiServer) wipe(t testing.TB) {
	t.Helper()
	for _, item := range s.slices(t) {
		if err := s.Tracker().Delete(sliceResource, "", item.Name); err != nil {
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
