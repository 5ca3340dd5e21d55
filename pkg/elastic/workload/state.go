package workload

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/devices"
	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
)

// ErrNotFound is that there is no such workload, or class.
var ErrNotFound = scaletarget.ErrNotFound

// Workload reads a workload and its pods. It is ErrNotFound where there is none of that name.
func (x *Index) Workload(ctx context.Context, ref Ref) (State, error) {
	if ref.Foreign() {
		return x.foreign(ctx, ref)
	}
	object, k, err := x.object(ctx, ref)
	if err != nil {
		return State{}, err
	}
	state := State{
		Ref: ref, APIVersion: k.group + "/v1", UID: object.GetUID(), ByCost: ref.Kind != KindStatefulSet,
		Replicas: ptr.Deref(k.replicas(object), 1), Template: nextPod(ref, k.template(object)),
	}
	state.Gated = Gated(state.Template)
	if state.Claims, err = x.claimsDevices(ctx, state.Template); err != nil {
		return State{}, err
	}
	makers := []types.UID{state.UID}
	if ref.Kind == KindDeployment {
		if makers, err = x.replicaSets(ctx, ref.Namespace, state.UID); err != nil {
			return State{}, err
		}
	}
	for _, maker := range makers {
		pods, err := x.pods(ctx, ref.Namespace, fieldController, string(maker))
		if err != nil {
			return State{}, err
		}
		for i := range pods {
			pod, err := x.pod(ctx, &pods[i])
			if err != nil {
				return State{}, err
			}
			state.Pods = append(state.Pods, pod)
		}
	}
	slices.SortFunc(state.Pods, byName)
	return state, nil
}

func byName(a, b Pod) int { return strings.Compare(a.Name, b.Name) }

func (x *Index) object(ctx context.Context, ref Ref) (client.Object, apiKind, error) {
	k, err := kindNamed(ref.Kind)
	if err != nil {
		return nil, apiKind{}, err
	}
	object := k.empty()
	found, err := x.get(ctx, ref.Namespace, ref.Name, object)
	if err == nil && !found {
		err = fmt.Errorf("%s %w in namespace %q: create it, or name one that is there", ref, ErrNotFound, ref.Namespace)
	}
	if owner, owned := controllerOf(object); err == nil && owned {
		err = fmt.Errorf("%s in namespace %q is one of %s, which decides how many replicas it has: name that one", ref, ref.Namespace, owner)
	}
	return object, k, err
}

// replicaSets are those of a Deployment: one for each revision that it remembers.
func (x *Index) replicaSets(ctx context.Context, namespace string, deployment types.UID) ([]types.UID, error) {
	var sets appsv1.ReplicaSetList
	err := x.reader.List(ctx, &sets, client.InNamespace(namespace), client.MatchingFields{fieldController: string(deployment)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list ReplicaSets by %s %s: %w", fieldController, deployment, err)
	}
	uids := make([]types.UID, len(sets.Items))
	for i := range sets.Items {
		uids[i] = sets.Items[i].UID
	}
	return uids, nil
}

func nextPod(ref Ref, template *corev1.PodTemplateSpec) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   ref.Namespace,
			Name:        ref.Name + "-sample",
			Labels:      template.Labels,
			Annotations: template.Annotations,
		},
		Spec: template.Spec,
	}
}

func (x *Index) claimsDevices(ctx context.Context, pod *corev1.Pod) (bool, error) {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true, nil
	}
	classes, err := x.extendedClasses(ctx, pod)
	return len(classes) > 0, err
}

func (x *Index) pod(ctx context.Context, object *corev1.Pod) (Pod, error) {
	claims, err := x.claims(ctx, object)
	if err != nil {
		return Pod{}, err
	}
	waits, err := x.waits(ctx, object, claims)
	if err != nil {
		return Pod{}, err
	}
	extended, err := x.extendedClaim(ctx, object)
	if err != nil {
		return Pod{}, err
	}
	if extended != nil {
		claims = append(claims, podClaim{claim: extended})
	}
	pod := Pod{
		UID:       object.UID,
		Name:      object.Name,
		Node:      object.Spec.NodeName,
		Unstarted: unstarted(object),
		Ready:     condition(object, corev1.PodReady).Status == corev1.ConditionTrue,
		Pending:   len(waits),
		Revision:  cmp.Or(object.Labels[appsv1.DefaultDeploymentUniqueLabelKey], object.Labels[appsv1.ControllerRevisionHashLabelKey]),
	}
	pod.Gate, pod.GateReason = gate(object)
	for _, c := range claims {
		pod.Devices = append(pod.Devices, x.devices(c.claim)...)
	}
	if !pod.Ready && pod.Gate != Standby && pod.Node != "" && pod.Pending == 0 && len(pod.Devices) > 0 {
		pod.LoadingSince = loadingSince(object, claims)
	}
	return pod, nil
}

// class is the one that a claim's request asks for, which is called as in a result: REQUEST, or
// REQUEST/ALTERNATIVE.
func class(claim *resourceapi.ResourceClaim, called string) string {
	name, alternative, _ := strings.Cut(called, "/")
	for _, request := range claim.Spec.Devices.Requests {
		if request.Name != name {
			continue
		}
		if request.Exactly != nil {
			return request.Exactly.DeviceClassName
		}
		for _, sub := range request.FirstAvailable {
			if sub.Name == alternative {
				return sub.DeviceClassName
			}
		}
	}
	return ""
}

// devices are those of our driver.
func (x *Index) devices(claim *resourceapi.ResourceClaim) []Device {
	if claim == nil {
		return nil
	}
	var own []Device
	for result := range devices.Results(claim.Status.Allocation) {
		if result.Driver != x.driver {
			continue
		}
		own = append(own, Device{
			Pool:             result.Pool,
			Name:             result.Device,
			Claim:            claim.UID,
			Class:            class(claim, result.Request),
			ShareID:          result.ShareID,
			ConsumedCapacity: result.ConsumedCapacity,
		})
	}
	return own
}

// loadingSince is when the last of what the pod waited for came. Where nobody has noted when,
// it is when kubelet, or else the API server, first had the pod.
func loadingSince(pod *corev1.Pod, claims []podClaim) time.Time {
	var latest time.Time
	note := func(at time.Time) {
		if at.After(latest) {
			latest = at
		}
	}
	for _, c := range claims {
		if c.claim != nil && c.claim.Status.Allocation != nil {
			note(ptr.Deref(c.claim.Status.Allocation.AllocationTimestamp, metav1.Time{}).Time)
		}
	}
	if scheduled := condition(pod, corev1.PodScheduled); scheduled.Status == corev1.ConditionTrue {
		note(scheduled.LastTransitionTime.Time)
	}
	if latest.IsZero() && pod.Status.StartTime != nil {
		latest = pod.Status.StartTime.Time
	}
	if latest.IsZero() {
		latest = pod.CreationTimestamp.Time
	}
	return latest
}

// unstarted goes by the condition that kubelet sets once the pod has a sandbox, for which it has
// the claims prepared before.
func unstarted(pod *corev1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodPending &&
		condition(pod, corev1.PodReadyToStartContainers).Status != corev1.ConditionTrue
}

func condition(pod *corev1.Pod, of corev1.PodConditionType) corev1.PodCondition {
	for _, c := range pod.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.PodCondition{}
}
