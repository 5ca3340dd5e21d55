package scheduler

import (
	"context"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	"k8s.io/utils/ptr"
)

// modelled are the default plugins that fit stands for. The others score, or look at volumes
// and spreading, which fit says that it does not.
var modelled = []string{
	names.PrioritySort, names.DefaultBinder,
	names.NodeUnschedulable, names.NodeName, names.NodeAffinity, names.TaintToleration, names.NodePorts,
	names.NodeResourcesFit, names.InterPodAffinity, names.DynamicResources,
}

// stock is the scheduler's framework on a world, with its default feature gates.
type stock struct {
	framework framework.Framework
	claims    *claims
	snapshot  *cache.Snapshot
}

func newStock(ctx context.Context, t *testing.T, w *world) *stock {
	t.Helper()
	metrics.Register()
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	profile := &defaults.Profiles[0]
	profile.Plugins.MultiPoint.Enabled = slices.DeleteFunc(profile.Plugins.MultiPoint.Enabled, func(p config.Plugin) bool {
		return !slices.Contains(modelled, p.Name)
	})
	client := fake.NewClientset()
	s := &stock{claims: newClaims(w), snapshot: cache.NewSnapshot(w.running(), w.objects())}
	s.framework, err = runtime.NewFramework(ctx, plugins.NewInTreeRegistry(), profile,
		runtime.WithClientSet(client),
		runtime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)),
		runtime.WithSnapshotSharedLister(s.snapshot),
		runtime.WithSharedDRAManager(manager{w: w, claims: s.claims}))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// verdict is what the scheduler says of a pod and a node.
type verdict struct {
	fits    bool
	aborts  bool
	reasons []string
}

func judged(status *fwk.Status) verdict {
	if status.IsSuccess() {
		return verdict{fits: true}
	}
	return verdict{aborts: status.Code() == fwk.Error, reasons: status.Reasons()}
}

// try asks for every node, and gives what was found out on the way, to go on with.
func (s *stock) try(ctx context.Context, pod *corev1.Pod) (map[string]verdict, fwk.CycleState) {
	state := framework.NewCycleState()
	verdicts := map[string]verdict{}
	nodes, _ := s.snapshot.NodeInfos().List()
	allowed, status, _ := s.framework.RunPreFilterPlugins(ctx, state, pod)
	for _, node := range nodes {
		name := node.Node().Name
		switch {
		case !status.IsSuccess():
			verdicts[name] = judged(status)
		case !allowed.AllNodes() && !allowed.NodeNames.Has(name):
			verdicts[name] = verdict{reasons: []string{"not among the nodes of the first filter"}}
		default:
			verdicts[name] = judged(s.framework.RunFilterPlugins(ctx, state, pod, node))
		}
	}
	return verdicts, state
}

// reserve puts the pod on the node, and gives the claims that are allocated for it.
func (s *stock) reserve(ctx context.Context, t *testing.T, state fwk.CycleState, pod *corev1.Pod, node string) []*resourceapi.ResourceClaim {
	t.Helper()
	s.claims.reserved = nil
	if status := s.framework.RunReservePluginsReserve(ctx, state, pod, node); !status.IsSuccess() {
		t.Fatalf("reserve %s for %s: %v", node, pod.Name, status.AsError())
	}
	return s.claims.reserved
}

// manager gives the scheduler the world.
type manager struct {
	w      *world
	claims *claims
}

func (m manager) ResourceClaims() fwk.ResourceClaimTracker     { return m.claims }
func (m manager) ResourceSlices() fwk.ResourceSliceLister      { return m }
func (m manager) DeviceClasses() fwk.DeviceClassLister         { return m }
func (m manager) DeviceClassResolver() fwk.DeviceClassResolver { return m }

func (m manager) ListWithDeviceTaintRules() ([]*resourceapi.ResourceSlice, error) {
	return m.w.slices(), nil
}

func (m manager) List() ([]*resourceapi.DeviceClass, error) { return m.w.classes, nil }

func (m manager) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range m.w.classes {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("deviceclasses"), name)
}

func (m manager) GetDeviceClass(resource corev1.ResourceName) *resourceapi.DeviceClass {
	for _, class := range m.w.classes {
		if string(resource) == resourceapi.ResourceDeviceClassPrefix+class.Name || string(resource) == ptr.Deref(class.Spec.ExtendedResourceName, "") {
			return class
		}
	}
	return nil
}

// claims are the world's, and what the scheduler has just allocated.
type claims struct {
	all      []*resourceapi.ResourceClaim
	reserved []*resourceapi.ResourceClaim
}

func newClaims(w *world) *claims {
	all := slices.Clone(w.claims)
	for _, p := range w.pods {
		all = append(all, p.claims...)
	}
	return &claims{all: all}
}

func (c *claims) List() ([]*resourceapi.ResourceClaim, error) { return c.all, nil }

func (c *claims) Get(namespace, name string) (*resourceapi.ResourceClaim, error) {
	for _, claim := range c.all {
		if claim.Namespace == namespace && claim.Name == name {
			return claim, nil
		}
	}
	return nil, apierrors.NewNotFound(resourceapi.Resource("resourceclaims"), name)
}

func (c *claims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	state, err := c.GatherAllocatedState()
	return state.AllocatedDevices, err
}

// GatherAllocatedState counts as the scheduler does.
func (c *claims) GatherAllocatedState() (*structured.AllocatedState, error) {
	state := &structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range c.all {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, result := range claim.Status.Allocation.Devices.Results {
			id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case ptr.Deref(result.AdminAccess, false):
			case result.ShareID == nil:
				state.AllocatedDevices.Insert(id)
			default:
				state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
				if result.ConsumedCapacity != nil {
					state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
				}
			}
		}
	}
	return state, nil
}

func (c *claims) SignalClaimPendingAllocation(_ types.UID, claim *resourceapi.ResourceClaim) error {
	c.reserved = append(c.reserved, claim)
	return nil
}

func (c *claims) GetPendingAllocation(types.UID) *resourceapi.AllocationResult { return nil }
func (c *claims) MaybeRemoveClaimPendingAllocation(types.UID, bool) bool       { return false }
func (c *claims) AssumeClaimAfterAPICall(*resourceapi.ResourceClaim) error     { return nil }
func (c *claims) AssumedClaimRestore(string, string)                           {}
