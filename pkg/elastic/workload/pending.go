package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pending counts claims that are neither allocated nor being deleted, of pods that have neither ended
// nor are being deleted. A claim that several pods share counts once. A claim to be made from a
// template counts while its pod has no node. A pod with extended resources of DeviceClasses counts as
// one claim until it has a node. A gang's replica counts as one.
// It returns an error if the workload or class does not exist, and until the cluster has been read.
func (x *Index) Pending(ctx context.Context, of Pending) (int, error) {
	counted, err := of.counted()
	if err != nil {
		return 0, err
	}
	if err := x.ready(ctx); err != nil {
		return 0, err
	}
	if counted.Foreign() {
		return x.foreignPending(ctx, counted)
	}
	if err := x.exists(ctx, counted); err != nil {
		return 0, err
	}
	return x.tally.count(counted), nil
}

// Watch sends Pending's count at once and after each change. It closes the channel when ctx ends. A
// slow reader misses counts, but never the last one. A workload that does not exist counts as 0,
// because it may be created. The channel is nil for workloads of other kinds: poll those.
func (x *Index) Watch(ctx context.Context, of Pending) (<-chan int, error) {
	counted, err := of.counted()
	if err != nil {
		return nil, err
	}
	if counted.Foreign() {
		return nil, nil
	}
	if err := x.ready(ctx); err != nil {
		return nil, err
	}
	return x.tally.watch(ctx, counted), nil
}

// counted is the tally's key.
func (p Pending) counted() (Ref, error) {
	switch {
	case p.Workload != nil && p.Class != "":
		return Ref{}, fmt.Errorf("claims are counted by workload or by class, not by both %s and %s", p.Workload, p.Class)
	case p.Workload != nil && p.Workload.Namespace != p.Namespace:
		return Ref{}, fmt.Errorf("claims of %s in namespace %q are not counted for namespace %q", p.Workload, p.Workload.Namespace, p.Namespace)
	case p.Workload != nil:
		return *p.Workload, nil
	case p.Class != "":
		return Ref{Kind: kindClass, Namespace: p.Namespace, Name: p.Class}, nil
	default:
		return Ref{}, errors.New("cannot count claims: name a workload or a class")
	}
}

func (x *Index) exists(ctx context.Context, counted Ref) error {
	if counted.Kind != kindClass {
		_, _, err := x.object(ctx, counted)
		return err
	}
	found, err := x.get(ctx, metav1.NamespaceNone, counted.Name, &resourceapi.DeviceClass{})
	if err != nil || found {
		return err
	}
	var classes resourceapi.DeviceClassList
	if err := x.reader.List(ctx, &classes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list device classes: %w", err)
	}
	names := map[string]bool{}
	for i := range classes.Items {
		names[classes.Items[i].Name] = true
	}
	return fmt.Errorf("DeviceClass %s %w: the cluster has [%s]", counted.Name, ErrNotFound, strings.Join(slices.Sorted(maps.Keys(names)), ", "))
}

// entries lists what a pod waits for, under all keys that it counts for.
func (x *Index) entries(ctx context.Context, key types.NamespacedName) ([]entry, error) {
	var pod corev1.Pod
	found, err := x.get(ctx, key.Namespace, key.Name, &pod)
	if err != nil || !found || gone(&pod) {
		return nil, err
	}
	claims, err := x.claims(ctx, &pod)
	if err != nil {
		return nil, err
	}
	waits, err := x.waits(ctx, &pod, claims)
	if err != nil || len(waits) == 0 {
		return nil, err
	}
	owners, err := x.owners(ctx, &pod)
	if err != nil {
		return nil, err
	}
	var entries []entry
	for _, wait := range waits {
		for _, owner := range owners {
			entries = append(entries, entry{of: owner, wait: wait.id})
		}
		for _, class := range wait.classes {
			entries = append(entries, entry{of: Ref{Kind: kindClass, Namespace: pod.Namespace, Name: class}, wait: wait.id})
		}
	}
	return entries, nil
}

// waits lists a pod's claims that are not allocated, and one for extended resources.
func (x *Index) waits(ctx context.Context, pod *corev1.Pod, claims []podClaim) ([]podClaim, error) {
	var waits []podClaim
	for _, c := range claims {
		if c.waits() {
			waits = append(waits, c)
		}
	}
	classes, err := x.extendedClasses(ctx, pod)
	if err != nil {
		return nil, err
	}
	if len(classes) > 0 {
		// No claim and no entry of a pod has such an id. The scheduler creates the claim for extended
		// resources allocated, right before it binds the pod; counting it too would count the pod twice.
		waits = append(waits, podClaim{id: pod.Name + "/", classes: classes})
	}
	return waits, nil
}

// owners lists the workloads of a pod: its controller, and the controller of its ReplicaSet.
func (x *Index) owners(ctx context.Context, pod *corev1.Pod) ([]Ref, error) {
	maker, known := controllerOf(pod)
	if !known {
		return nil, nil
	}
	owners := []Ref{maker}
	if maker.Kind != KindReplicaSet {
		return owners, nil
	}
	var set appsv1.ReplicaSet
	found, err := x.get(ctx, pod.Namespace, maker.Name, &set)
	if err != nil {
		return nil, err
	}
	if found && metav1.IsControlledBy(pod, &set) {
		if owner, known := controllerOf(&set); known {
			owners = append(owners, owner)
		}
	}
	return owners, nil
}

// classFor returns the DeviceClass for an extended resource; empty if a device plugin serves it. Of
// several classes the scheduler uses the newest.
func (x *Index) classFor(ctx context.Context, resource string) (string, error) {
	if class, implicit := strings.CutPrefix(resource, resourceapi.ResourceDeviceClassPrefix); implicit {
		return class, nil
	}
	var classes resourceapi.DeviceClassList
	if err := x.reader.List(ctx, &classes, client.MatchingFields{fieldResource: resource}, client.UnsafeDisableDeepCopy); err != nil {
		return "", fmt.Errorf("list device classes by extended resource %s: %w", resource, err)
	}
	if len(classes.Items) == 0 {
		return "", nil
	}
	newest := slices.MinFunc(classes.Items, func(a, b resourceapi.DeviceClass) int {
		if c := b.CreationTimestamp.Compare(a.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return newest.Name, nil
}
