package scan

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	resourcehelper "k8s.io/component-helpers/resource"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
)

// room is a node with its free resources.
type room struct {
	node   *corev1.Node
	free   corev1.ResourceList
	pods   []*corev1.Pod
	slices []*resourceapi.ResourceSlice
	taken  structured.AllocatedState
}

// Reasons why a pod does not fit, as the scheduler's filters report them
// (simulator/clustersnapshot/predicate/plugin_runner.go, RunFiltersOnNode).
const (
	reasonUnschedulable = "node(s) were unschedulable"
	reasonTaint         = "node(s) had untolerated taint(s)"
	reasonAffinity      = "node(s) didn't match Pod's node affinity/selector"
	reasonAntiAffinity  = "node(s) didn't match pod anti-affinity rules"
	reasonPods          = "Too many pods"
	reasonClaims        = "cannot allocate all claims"
)

// live is the room of an existing node.
func (w *world) live(node *corev1.Node, published []*resourceapi.ResourceSlice, all []*corev1.Pod) *room {
	var pods []*corev1.Pod
	for _, pod := range all {
		if pod.Spec.NodeName == node.Name && active(pod) {
			pods = append(pods, pod)
		}
	}
	return w.room(node, slicesOf(published, node.Name), pods)
}

func (w *world) room(node *corev1.Node, published []*resourceapi.ResourceSlice, pods []*corev1.Pod) *room {
	r := &room{node: node, free: corev1.ResourceList{}, slices: published}
	for name, quantity := range node.Status.Allocatable {
		r.free[name] = quantity.DeepCopy()
	}
	for _, pod := range pods {
		r.take(pod)
	}
	r.taken = w.taken(published)
	return r
}

func (r *room) take(pod *corev1.Pod) {
	r.pods = append(r.pods, pod)
	for name, quantity := range requests(pod) {
		left := r.free[name]
		left.Sub(quantity)
		r.free[name] = left
	}
}

// requests are a pod's requests, and one of the node's pods.
func requests(pod *corev1.Pod) corev1.ResourceList {
	list := maps.Clone(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{}))
	if list == nil {
		list = corev1.ResourceList{}
	}
	list[corev1.ResourcePods] = *resource.NewQuantity(1, resource.DecimalSI)
	return list
}

// place puts a pod into a room, or returns why it does not fit.
func (w *world) place(ctx context.Context, r *room, pod *corev1.Pod) (reason string, err error) {
	for _, filter := range []func(context.Context, *room, *corev1.Pod) string{admits, selects, w.affords, keepsApart} {
		if reason := filter(ctx, r, pod); reason != "" {
			return reason, nil
		}
	}
	claims := w.claimsOf(pod)
	results, open, reason, err := w.allocate(ctx, r, claims)
	if reason != "" || err != nil {
		return reason, err
	}
	for i, result := range results {
		w.placed[open[i].UID] = r
		take(&r.taken, result)
	}
	r.take(pod)
	return "", nil
}

func admits(ctx context.Context, r *room, pod *corev1.Pod) string {
	if r.node.Spec.Unschedulable {
		return reasonUnschedulable
	}
	repels := func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }
	if _, untolerated := corev1helpers.FindMatchingUntoleratedTaint(klog.FromContext(ctx), r.node.Spec.Taints, pod.Spec.Tolerations, repels, true); untolerated {
		return reasonTaint
	}
	return ""
}

func selects(_ context.Context, r *room, pod *corev1.Pod) string {
	if matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(r.node); err != nil || !matches {
		return reasonAffinity
	}
	return ""
}

// affords checks the node's resources. An extended resource of a device class is checked but not taken, so that a node seems
// to have room for more pods than it has devices (simulator/clustersnapshot/predicate/predicate_snapshot.go, SchedulePod).
func (w *world) affords(ctx context.Context, r *room, pod *corev1.Pod) string {
	wanted := requests(pod)
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		quantity, free := wanted[name], r.free[name]
		if quantity.IsZero() || quantity.Cmp(free) <= 0 {
			continue
		}
		if _, has := r.node.Status.Allocatable[name]; !has {
			if class := w.classFor(name); class != "" && w.couldHave(ctx, r, class, quantity.Value()) {
				continue
			}
		}
		if name == corev1.ResourcePods {
			return reasonPods
		}
		return "Insufficient " + string(name)
	}
	return ""
}

func (w *world) couldHave(ctx context.Context, r *room, class string, count int64) bool {
	claim := &resourceapi.ResourceClaim{}
	claim.UID = "extended-resource"
	claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "devices", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}}
	_, _, reason, err := w.allocate(ctx, r, []*resourceapi.ResourceClaim{claim})
	return reason == "" && err == nil
}

// keepsApart supports the topology of host names only.
func keepsApart(_ context.Context, r *room, pod *corev1.Pod) string {
	for _, other := range r.pods {
		if repels(pod, other) || repels(other, pod) {
			return reasonAntiAffinity
		}
	}
	return ""
}

func repels(pod, other *corev1.Pod) bool {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.PodAntiAffinity == nil {
		return false
	}
	for _, term := range pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
		selector, err := metav1.LabelSelectorAsSelector(term.LabelSelector)
		if err == nil && term.TopologyKey == corev1.LabelHostname && selector.Matches(labels.Set(other.Labels)) &&
			(other.Namespace == pod.Namespace || slices.Contains(term.Namespaces, other.Namespace)) {
			return true
		}
	}
	return false
}

// allocate finds devices for the unallocated claims.
func (w *world) allocate(ctx context.Context, r *room, claims []*resourceapi.ResourceClaim) (results []resourceapi.AllocationResult, open []*resourceapi.ResourceClaim, reason string, err error) {
	for _, claim := range claims {
		home := w.placed[claim.UID]
		switch {
		case home == nil && claim.Status.Allocation == nil:
			open = append(open, claim)
		case home != nil && home != r, home == nil && !reaches(claim.Status.Allocation, r.node):
			return nil, nil, reasonClaims, nil
		}
	}
	if len(open) == 0 {
		return nil, nil, "", nil
	}
	allocator, err := structured.NewAllocator(ctx, features, r.taken, w, r.slices, w.expressions)
	if err != nil {
		return nil, nil, "", fmt.Errorf("set the allocator up for node %s: %w", r.node.Name, err)
	}
	results, err = allocator.Allocate(ctx, r.node, open)
	switch {
	case ctx.Err() != nil:
		return nil, nil, "", ctx.Err()
	case errors.Is(err, structured.ErrFailedAllocationOnNode), err == nil && len(results) != len(open):
		return nil, nil, reasonClaims, nil
	case err != nil: // an expression that fails is the pod's own problem
		return nil, nil, err.Error(), nil
	}
	return results, open, "", nil
}

func reaches(allocation *resourceapi.AllocationResult, node *corev1.Node) bool {
	if allocation.NodeSelector == nil {
		return true
	}
	selector, err := nodeaffinity.NewNodeSelector(allocation.NodeSelector)
	return err == nil && selector.Match(node)
}

// take records the devices of an allocation. Devices with admin access stay free.
func take(state *structured.AllocatedState, allocation resourceapi.AllocationResult) {
	for _, device := range allocation.Devices.Results {
		if device.AdminAccess != nil && *device.AdminAccess {
			continue
		}
		id := structured.MakeDeviceID(device.Driver, device.Pool, device.Device)
		if device.ShareID == nil {
			state.AllocatedDevices.Insert(id)
			continue
		}
		state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, device.ShareID))
		state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, device.ConsumedCapacity))
	}
}
