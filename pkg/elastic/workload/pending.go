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

// Pending counts claims that are not allocated, and not being deleted, of pods that have not
// ended and are not being deleted. A claim that several pods name counts once. A pod without a
// node for which a claim is still to be made of a template counts as if it were; one that
// requests extended resources for which classes stand counts as one claim, until it has a node. All
// that the pods of a gang's replica wait for counts once: it asks for one replica.
//
// It is an error where there is no such workload or class, and until the cluster has been read.
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

// Watch gives what Pending counts, at once and when it has changed, until ctx ends and the
// channel is closed. A reader that is slow misses counts, never the last one. Nothing waits for
// a workload that does not exist: it may be created yet, so that is 0 here, and no error. The channel
// is nil for a workload of a kind that is not known here, of which only asking again tells.
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

// counted is under which name the tally has it.
func (p Pending) counted() (Ref, error) {
	switch {
	case p.Workload != nil && p.Class != "":
		return Ref{}, fmt.Errorf("claims are counted of a workload or of a class, not of both %s and %s", p.Workload, p.Class)
	case p.Workload != nil && p.Workload.Namespace != p.Namespace:
		return Ref{}, fmt.Errorf("claims of %s in namespace %q are not counted for namespace %q", p.Workload, p.Workload.Namespace, p.Namespace)
	case p.Workload != nil:
		return *p.Workload, nil
	case p.Class != "":
		return Ref{Kind: kindClass, Namespace: p.Namespace, Name: p.Class}, nil
	default:
		return Ref{}, errors.New("whose claims are to be counted is not said: name a workload or a class")
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

// entries are what a pod waits for, under all names that it counts for.
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

// waits are those of a pod's claims that are not allocated, and one for extended resources.
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
		// No claim and no entry of a pod has such an id. The claim that the scheduler makes of
		// the requests is allocated, and just before the pod gets its node: to count it as well
		// would count the pod twice.
		waits = append(waits, podClaim{id: pod.Name + "/", classes: classes})
	}
	return waits, nil
}

// owners are the workloads that a pod is of: what made it, and what made its ReplicaSet.
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

// classFor is the name of the class that stands for an extended resource; empty where none does,
// which leaves the resource to a device plugin. Of several classes the scheduler takes the
// newest, so that clusters can move from one to the other.
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
