package workload

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
)

// foreign reads a workload by its scale subresource, and its pods by the scale's selector.
func (x *Index) foreign(ctx context.Context, ref Ref) (State, error) {
	target, pods, err := x.selected(ctx, ref)
	if err != nil {
		return State{}, err
	}
	ref.Kind = target.Kind.Kind // as the cluster spells it, for Events and comparisons
	state := State{Ref: ref, APIVersion: target.Kind.GroupVersion().String(), UID: target.UID, Replicas: target.Replicas, ByCost: len(pods) > 0}
	for i := range pods {
		pod, err := x.pod(ctx, &pods[i])
		if err != nil {
			return State{}, err
		}
		if target.Gang != nil {
			pod.Replica = pods[i].Labels[target.Gang.Label]
			pod.Follows = !target.Selector.Matches(labels.Set(pods[i].Labels))
		}
		state.Pods = append(state.Pods, pod)
		maker, known := controllerOf(&pods[i])
		state.ByCost = state.ByCost && known && maker.Kind == KindReplicaSet
	}
	slices.SortFunc(state.Pods, byName)
	return state, x.members(ctx, &state, target, pods)
}

// selected lists the target's pods that have not ended and are not being deleted, without copies.
func (x *Index) selected(ctx context.Context, ref Ref) (*scaletarget.Target, []corev1.Pod, error) {
	target, err := x.targets.Read(ctx, scaletarget.Name{Kind: ref.Kind, Group: ref.Group, Namespace: ref.Namespace, Name: ref.Name})
	if err != nil {
		return nil, nil, err
	}
	selector := target.Selector
	if target.Gang != nil {
		selector = target.Gang.Pods
	}
	var list corev1.PodList
	if err := x.reader.List(ctx, &list, client.InNamespace(ref.Namespace), client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list the pods of %s: %w", ref, err)
	}
	pods := slices.DeleteFunc(slices.Clone(list.Items), func(pod corev1.Pod) bool { return gone(&pod) })
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return target, pods, nil
}

// members finds the pods of the next replica: from the object's template, or else from its newest pod.
func (x *Index) members(ctx context.Context, state *State, target *scaletarget.Target, pods []corev1.Pod) error {
	switch {
	case len(target.Members) > 0:
		state.Template = nextPod(state.Ref, &target.Members[0].Template)
	case len(pods) > 0:
		state.Template = likeIt(&pods[len(pods)-1])
	default:
		return fmt.Errorf("the claims of %s are unknown: it has neither pods nor a pod template in spec.template: keep one replica, or name the workload that it manages", state.Ref)
	}
	state.Gated = Gated(state.Template)
	var err error
	if state.Claims, err = x.claimsDevices(ctx, state.Template); err != nil || target.Gang == nil {
		return err
	}
	for i := range target.Members {
		m := Member{Pod: nextPod(state.Ref, &target.Members[i].Template), Count: target.Members[i].Count}
		m.Gated = Gated(m.Pod)
		claims, err := x.claimsDevices(ctx, m.Pod)
		if err != nil {
			return err
		}
		state.Claims = state.Claims || claims
		state.Gang = append(state.Gang, m)
	}
	return nil
}

// likeIt is an unscheduled copy of a pod, without what differs between pods of one workload.
func likeIt(pod *corev1.Pod) *corev1.Pod {
	sample := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "sample", Labels: maps.Clone(pod.Labels)}, Spec: pod.Spec}
	delete(sample.Labels, appsv1.StatefulSetPodNameLabel)
	delete(sample.Labels, appsv1.PodIndexLabel)
	sample.Spec.NodeName, sample.Spec.Hostname = "", ""
	return sample
}

// foreignPending counts the claims that pods wait for; for a gang, the replicas that wait.
func (x *Index) foreignPending(ctx context.Context, ref Ref) (int, error) {
	target, pods, err := x.selected(ctx, ref)
	if err != nil {
		return 0, err
	}
	waiting := map[string]struct{}{}
	for i := range pods {
		claims, err := x.claims(ctx, &pods[i])
		if err != nil {
			return 0, err
		}
		waits, err := x.waits(ctx, &pods[i], claims)
		if err != nil {
			return 0, err
		}
		for _, wait := range waits {
			id := wait.id
			if target.Gang != nil {
				id = pods[i].Labels[target.Gang.Label]
			}
			waiting[id] = struct{}{}
		}
	}
	return len(waiting), nil
}
