package scaleout

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// naive plans pod by pod: it tries every node and every group with an allocator of its own,
// remembers nothing, and knows of nodes only CPU, labels and the number of pods.
type naive struct {
	t      *testing.T
	s      Snapshot
	cache  *cel.Cache
	nodes  []*naiveNode
	opened map[string]int
	// shared has where claims are that pods name themselves.
	shared map[string]*naiveNode
}

// naiveNode is a node and what is on it.
type naiveNode struct {
	stage stage
	// idle reports that it is coming and has no pods.
	idle   bool
	name   string
	group  string
	object *corev1.Node
	slices []*resourceapi.ResourceSlice
	state  structured.AllocatedState
	cpu    int64
	pods   int64
}

func newNaive(t *testing.T, s Snapshot) *naive {
	n := &naive{t: t, s: s, cache: cel.NewCache(100, cel.Features{EnableConsumableCapacity: true}), opened: map[string]int{}, shared: map[string]*naiveNode{}}
	for _, node := range s.Nodes {
		made := &naiveNode{name: node.Object.Name, group: node.Group, object: node.Object, state: emptyState()}
		if node.Starting {
			made.stage = coming
		}
		for _, slice := range s.Slices {
			if *slice.Spec.NodeName == made.name {
				made.slices = append(made.slices, slice)
			}
		}
		for _, claim := range s.Claims {
			made.take(claim.Status.Allocation)
		}
		n.nodes = append(n.nodes, made)
	}
	for _, g := range s.Groups {
		for range g.Upcoming {
			made := n.fresh(g, coming)
			made.idle = true
			n.nodes = append(n.nodes, made)
		}
	}
	return n
}

func emptyState() structured.AllocatedState {
	return structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
}

func (n *naive) fresh(g Group, at stage) *naiveNode {
	return &naiveNode{stage: at, group: g.Name, object: g.Template.Node, slices: g.Template.Slices, state: emptyState()}
}

func (n *naiveNode) copy() *naiveNode {
	made := *n
	made.state = structured.AllocatedState{
		AllocatedDevices:         n.state.AllocatedDevices.Clone(),
		AllocatedSharedDeviceIDs: n.state.AllocatedSharedDeviceIDs.Clone(),
		AggregatedCapacity:       n.state.AggregatedCapacity.Clone(),
	}
	return &made
}

// take notes an allocation on the node's pool.
func (n *naiveNode) take(allocation *resourceapi.AllocationResult) {
	if allocation == nil {
		return
	}
	for _, result := range allocation.Devices.Results {
		if n.name != "" && result.Pool != n.name || result.AdminAccess != nil && *result.AdminAccess {
			continue
		}
		id := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
		if result.ShareID == nil {
			n.state.AllocatedDevices.Insert(id)
			continue
		}
		n.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, result.ShareID))
		if result.ConsumedCapacity != nil {
			n.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, result.ConsumedCapacity))
		}
	}
}

// nominee puts a nominated pod on its node, or has it wait there.
func (n *naive) nominee(pod *corev1.Pod) string {
	on := n.nodes[slices.IndexFunc(n.nodes, func(node *naiveNode) bool { return node.name == n.s.Nominated[pod.UID] })]
	for name, node := range n.sharedOf(pod) {
		if node != nil && node != on || !n.put(on, pod) {
			return string(Held)
		}
		return n.went(pod, name, on)
	}
	if !n.put(on, pod) {
		return string(Held)
	}
	return n.went(pod, "", on)
}

// outcome of a pod, as text.
func (n *naive) place(pod *corev1.Pod, like int) string {
	for name, node := range n.sharedOf(pod) {
		if node == nil {
			continue
		}
		if !n.put(node, pod) {
			return string(Blocked)
		}
		return n.went(pod, name, node)
	}
	best := n.first(pod, like)
	if best == nil {
		best = n.grow(pod, like)
	}
	if best == nil {
		return string(Blocked)
	}
	if !n.put(best, pod) {
		n.t.Fatal("the pod did fit a moment ago")
	}
	for name := range n.sharedOf(pod) {
		return n.went(pod, name, best)
	}
	return n.went(pod, "", best)
}

func (n *naive) went(pod *corev1.Pod, claim string, node *naiveNode) string {
	if claim != "" {
		n.shared[claim] = node
	}
	if node.stage == live {
		return fmt.Sprintf("%s %s", node.stage.outcome(), node.name)
	}
	return fmt.Sprintf("%s %s", node.stage.outcome(), node.group)
}

// sharedOf are the claims, at most one, that the pod names, and where they are.
func (n *naive) sharedOf(pod *corev1.Pod) map[string]*naiveNode {
	for _, claim := range pod.Spec.ResourceClaims {
		if claim.ResourceClaimName != nil {
			return map[string]*naiveNode{*claim.ResourceClaimName: n.shared[*claim.ResourceClaimName]}
		}
	}
	return nil
}

// first is the first node with room: of those that exist and of those that are used, by turn, and
// of those that are coming the cheapest. For pods that share a claim it is the one with the most
// room.
func (n *naive) first(pod *corev1.Pod, like int) *naiveNode {
	steps := []func(*naiveNode) bool{
		func(node *naiveNode) bool { return node.stage == live },
		func(node *naiveNode) bool { return node.stage != live && !node.idle },
		func(node *naiveNode) bool { return node.idle },
	}
	for _, step := range steps {
		var best *naiveNode
		most := 0
		for _, node := range n.nodes {
			supply := 0
			if step(node) {
				supply = min(n.room(node, pod), like)
			}
			switch {
			case supply == 0:
			case best == nil, n.sharedOf(pod) != nil && supply > most,
				n.sharedOf(pod) == nil && node.idle && n.cost(node, supply) < n.cost(best, most):
				best, most = node, supply
			}
		}
		if best == nil {
			continue
		}
		if best.idle {
			best.idle = false
			n.nodes = append(slices.DeleteFunc(n.nodes, func(node *naiveNode) bool { return node == best }), best)
		}
		return best
	}
	return nil
}

// cost is that of one of the pods.
func (n *naive) cost(node *naiveNode, takes int) float64 {
	for _, g := range n.s.Groups {
		if g.Name == node.group {
			return g.PricePerHour.AsApproximateFloat64() / float64(takes)
		}
	}
	return 0
}

// room counts the pods that fit on a node.
func (n *naive) room(node *naiveNode, pod *corev1.Pod) int {
	left := node.copy()
	claims := n.shared
	n.shared = map[string]*naiveNode{}
	defer func() { n.shared = claims }()
	count := 0
	for n.put(left, pod) {
		count++
		for name := range n.sharedOf(pod) {
			n.shared[name] = left
		}
	}
	return count
}

// grow opens a node in the group that is cheapest for each pod.
func (n *naive) grow(pod *corev1.Pod, like int) *naiveNode {
	var best *Group
	bestTakes := 0
	for i := range n.s.Groups {
		g := &n.s.Groups[i]
		if g.Closed != "" || g.Max != nil && g.Size+n.opened[g.Name] >= *g.Max {
			continue
		}
		node := n.fresh(*g, opened)
		takes := min(n.room(node, pod), like)
		if takes == 0 {
			continue
		}
		// In these clusters no two groups cost the same for each pod.
		cheaper := best == nil || n.cost(node, takes) < n.cost(&naiveNode{group: best.Name}, bestTakes)
		if n.sharedOf(pod) != nil && best != nil && takes != bestTakes {
			cheaper = takes > bestTakes
		}
		if cheaper {
			best, bestTakes = g, takes
		}
	}
	if best == nil {
		return nil
	}
	n.opened[best.Name]++
	node := n.fresh(*best, opened)
	n.nodes = append(n.nodes, node)
	return node
}

// put puts a pod on a node if it fits.
func (n *naive) put(node *naiveNode, pod *corev1.Pod) bool {
	need := pod.Spec.Containers[0].Resources.Requests.Cpu().MilliValue()
	if node.cpu+need > node.object.Status.Allocatable.Cpu().MilliValue() || node.pods+1 > node.object.Status.Allocatable.Pods().Value() {
		return false
	}
	for key, value := range pod.Spec.NodeSelector {
		if node.object.Labels[key] != value {
			return false
		}
	}
	claims := n.claims(pod)
	features := structured.Features{AdminAccess: true, ConsumableCapacity: true, DeviceBindingAndStatus: true,
		DeviceTaints: true, PartitionableDevices: true, PrioritizedList: true}
	allocator, err := structured.NewAllocator(context.Background(), features, node.state, classLister(n.s.Classes), node.slices, n.cache)
	if err != nil {
		n.t.Fatal(err)
	}
	results, err := allocator.Allocate(context.Background(), node.object, claims)
	if err != nil {
		n.t.Fatal(err)
	}
	if len(results) != len(claims) {
		return false
	}
	for i := range results {
		for d := range results[i].Devices.Results {
			result := &results[i].Devices.Results[d]
			if result.ShareID == nil && result.ConsumedCapacity != nil {
				result.ShareID = new(types.UID)
			}
		}
		node.take(&results[i])
	}
	node.cpu += need
	node.pods++
	return true
}

// claims are those of the pod that are to be allocated.
func (n *naive) claims(pod *corev1.Pod) []*resourceapi.ResourceClaim {
	var claims []*resourceapi.ResourceClaim
	for _, podClaim := range pod.Spec.ResourceClaims {
		claim := &resourceapi.ResourceClaim{}
		claim.Namespace, claim.Name = pod.Namespace, pod.Name+"-"+podClaim.Name
		claim.UID = types.UID(claim.Name)
		if podClaim.ResourceClaimName != nil {
			if n.shared[*podClaim.ResourceClaimName] != nil {
				continue
			}
			for _, object := range n.s.Claims {
				if object.Name == *podClaim.ResourceClaimName {
					claim = object
				}
			}
		} else {
			for _, object := range n.s.ClaimTemplates {
				if object.Name == *podClaim.ResourceClaimTemplateName {
					claim.Spec = object.Spec.Spec
				}
			}
		}
		claims = append(claims, claim)
	}
	return claims
}

// classLister has classes for the allocator.
type classLister []*resourceapi.DeviceClass

func (l classLister) List() ([]*resourceapi.DeviceClass, error) { return l, nil }

func (l classLister) Get(name string) (*resourceapi.DeviceClass, error) {
	for _, class := range l {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("there is no class %q", name)
}
