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

// ErrNotFound is returned for a workload or class that does not exist.
var ErrNotFound = scaletarget.ErrNotFound

// Workload reads a workload and its pods. It returns ErrNotFound if the workload does not exist.
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

// replicaSets lists a Deployment's ReplicaSets, one per revision.
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

// class returns the DeviceClass of a claim's request, which is named as in an allocation: REQUEST or
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

// devices lists the claim's devices of this driver.
func (x *Index) devices(claim *resourceapi.ResourceClaim) []Device {
	if claim == nil {
		return nil
	}
	var own []Device
	for held := range devices.Holdings(claim.Status.Allocation) {
		if held.Pool.Driver == x.driver {
			own = append(own, Device{Holding: held, Claim: claim.UID, Class: class(claim, held.Request)})
		}
	}
	return own
}

// loadingSince is when the pod got the last of its devices and its node. If no condition has the time,
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

// unstarted reads the condition that kubelet sets when it has created the pod's sandbox, after
// preparing its claims.
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
