package scan

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
)

// features are those of the stock 1.37 scheduler, as in the real one.
var features = structured.Features{
	AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
	DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true,
}

// expressions is shared by all scans, because compiling dominates their time.
var expressions = cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})

// world is the shared state of all rooms.
type world struct {
	claims  map[types.NamespacedName]*resourceapi.ResourceClaim
	classes map[string]*resourceapi.DeviceClass
	// placed are the rooms of the claims that this scan has allocated.
	placed      map[types.UID]*room
	expressions *cel.Cache
}

func newWorld(state State) *world {
	w := &world{
		claims:      map[types.NamespacedName]*resourceapi.ResourceClaim{},
		classes:     map[string]*resourceapi.DeviceClass{},
		placed:      map[types.UID]*room{},
		expressions: expressions,
	}
	for _, claim := range state.Claims {
		w.claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = claim
	}
	for _, class := range state.Classes {
		w.classes[class.Name] = class
	}
	return w
}

// fork is a copy for another attempt.
func (w *world) fork() *world {
	forked := *w
	forked.placed = maps.Clone(w.placed)
	return &forked
}

// List and Get are the allocator's DeviceClassLister.
func (w *world) List() ([]*resourceapi.DeviceClass, error) {
	all := make([]*resourceapi.DeviceClass, 0, len(w.classes))
	for _, class := range w.classes {
		all = append(all, class)
	}
	return all, nil
}

// Get returns a class.
func (w *world) Get(name string) (*resourceapi.DeviceClass, error) {
	if class := w.classes[name]; class != nil {
		return class, nil
	}
	return nil, fmt.Errorf("device class %s does not exist", name)
}

// classFor is the youngest class of an extended resource.
func (w *world) classFor(name corev1.ResourceName) string {
	var found *resourceapi.DeviceClass
	for _, class := range w.classes {
		explicit := class.Spec.ExtendedResourceName != nil && *class.Spec.ExtendedResourceName == string(name)
		if !explicit && resourceapi.ResourceDeviceClassPrefix+class.Name != string(name) {
			continue
		}
		if found == nil || found.CreationTimestamp.Before(&class.CreationTimestamp) ||
			found.CreationTimestamp.Equal(&class.CreationTimestamp) && class.Name < found.Name {
			found = class
		}
	}
	if found == nil {
		return ""
	}
	return found.Name
}

// claimsExist reports whether all claims of a pod exist. Until then, the scheduler does not try the pod either.
func (w *world) claimsExist(pod *corev1.Pod) bool {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name != nil && w.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}] == nil {
			return false
		}
	}
	return true
}

func (w *world) claimsOf(pod *corev1.Pod) []*resourceapi.ResourceClaim {
	var claims []*resourceapi.ResourceClaim
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err == nil && name != nil {
			claims = append(claims, w.claims[types.NamespacedName{Namespace: pod.Namespace, Name: *name}])
		}
	}
	return claims
}

// taken are the allocated devices of the slices' pools.
func (w *world) taken(published []*resourceapi.ResourceSlice) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	type pool struct{ driver, name string }
	pools := map[pool]bool{}
	for _, slice := range published {
		pools[pool{slice.Spec.Driver, slice.Spec.Pool.Name}] = true
	}
	for _, claim := range w.claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, device := range claim.Status.Allocation.Devices.Results {
			if pools[pool{device.Driver, device.Pool}] {
				take(&state, *claim.Status.Allocation)
				break
			}
		}
	}
	return state
}
