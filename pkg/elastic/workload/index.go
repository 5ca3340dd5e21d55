package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/scaletarget"
)

// Index answers for workloads. It is safe for concurrent use.
type Index struct {
	reader  client.Reader
	driver  string
	targets Targets
	tally   *tally

	mu sync.Mutex
	// handlers are those that Observe added.
	handlers []toolscache.ResourceEventHandlerRegistration
	// broken is why the counts are no longer reliable.
	broken error
}

// Targets reads workloads of other kinds by their scale subresource: package scaletarget.
type Targets interface {
	// Read returns an error if the object does not exist or has no scale.
	Read(ctx context.Context, name scaletarget.Name) (*scaletarget.Target, error)
}

// New returns an Index for a driver's devices. Call Observe before the cache starts.
func New(reader client.Reader, driver string, targets Targets) *Index {
	return &Index{reader: reader, driver: driver, targets: targets, tally: newTally()}
}

// Observe adds indexes to the cache and counts pending claims until ctx ends. Call it once, before the
// cache starts.
func (x *Index) Observe(ctx context.Context, informers cache.Informers) error {
	if err := addFields(ctx, informers); err != nil {
		return err
	}
	for _, kind := range []struct {
		object client.Object
		// affected lists pods whose counts may change.
		affected func(ctx context.Context, before, after client.Object) ([]types.NamespacedName, error)
	}{
		{&corev1.Pod{}, x.itself},
		{&resourceapi.ResourceClaim{}, x.thatName(fieldClaim)},
		{&resourceapi.ResourceClaimTemplate{}, x.thatName(fieldTemplate)},
		{&resourceapi.DeviceClass{}, x.thatRequestResource},
		{&appsv1.ReplicaSet{}, x.ofReplicaSet},
		{&appsv1.Deployment{}, nil},
		{&appsv1.StatefulSet{}, nil},
		{&batchv1.Job{}, nil},
	} {
		informer, err := informers.GetInformer(ctx, kind.object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind.object, err)
		}
		if kind.affected == nil {
			continue // read only; the informer is started so that the first question need not wait
		}
		handler, err := informer.AddEventHandler(x.handler(ctx, kind.affected))
		if err != nil {
			return fmt.Errorf("watch %T: %w", kind.object, err)
		}
		x.handlers = append(x.handlers, handler)
	}
	return nil
}

// handler recounts the pods that a change affects. It reads the cache as it is now, which may be newer
// than the change; a newer change has its own call.
func (x *Index) handler(ctx context.Context, affected func(context.Context, client.Object, client.Object) ([]types.NamespacedName, error)) toolscache.ResourceEventHandler {
	change := func(before, after any) {
		b, _ := before.(client.Object)
		a, _ := after.(client.Object)
		pods, err := affected(ctx, b, a)
		for i := 0; err == nil && i < len(pods); i++ {
			err = x.tally.update(pods[i], func() ([]entry, error) { return x.entries(ctx, pods[i]) })
		}
		if err != nil && ctx.Err() == nil {
			x.fail(ctx, err)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { change(nil, object) },
		UpdateFunc: change,
		DeleteFunc: func(object any) {
			if last, missed := object.(toolscache.DeletedFinalStateUnknown); missed {
				object = last.Obj
			}
			change(object, nil)
		},
	}
}

// fail makes all requests return the error: a count that missed a change stays wrong.
func (x *Index) fail(ctx context.Context, err error) {
	klog.FromContext(ctx).Error(err, "Cannot count pending claims; restart the controller")
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.broken == nil {
		x.broken = fmt.Errorf("pending claims are no longer counted, restart the controller: %w", err)
	}
}

// ready waits until the initial state of the cluster is counted.
func (x *Index) ready(ctx context.Context) error {
	if len(x.handlers) == 0 {
		return errors.New("no cache is observed: waiting claims are not counted")
	}
	for _, handler := range x.handlers {
		checker := handler.HasSyncedChecker()
		select {
		case <-checker.Done():
		case <-ctx.Done():
			return fmt.Errorf("the cluster's pods and claims have not been read completely yet; the controller's log names what it may not list: %w", context.Cause(ctx))
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.broken
}

func (x *Index) itself(_ context.Context, before, after client.Object) ([]types.NamespacedName, error) {
	if after == nil {
		after = before
	}
	return []types.NamespacedName{client.ObjectKeyFromObject(after)}, nil
}

// thatName lists the pods that refer to an object by a field.
func (x *Index) thatName(field string) func(ctx context.Context, before, after client.Object) ([]types.NamespacedName, error) {
	return func(ctx context.Context, before, after client.Object) ([]types.NamespacedName, error) {
		if after == nil {
			after = before
		}
		pods, err := x.pods(ctx, after.GetNamespace(), field, after.GetName())
		return keys(pods), err
	}
}

func (x *Index) thatRequestResource(ctx context.Context, before, after client.Object) ([]types.NamespacedName, error) {
	var affected []types.NamespacedName
	for _, class := range []client.Object{before, after} {
		for _, resource := range classResources(class) {
			pods, err := x.pods(ctx, metav1.NamespaceAll, fieldResource, resource)
			if err != nil {
				return nil, err
			}
			affected = append(affected, keys(pods)...)
		}
	}
	return affected, nil
}

// ofReplicaSet ignores updates that do not change the owner, such as those of status.
func (x *Index) ofReplicaSet(ctx context.Context, before, after client.Object) ([]types.NamespacedName, error) {
	if before != nil && after != nil && before.GetUID() == after.GetUID() {
		was, _ := controllerOf(before)
		if is, _ := controllerOf(after); was == is {
			return nil, nil
		}
	}
	var affected []types.NamespacedName
	for _, set := range []client.Object{before, after} {
		if set == nil {
			continue
		}
		pods, err := x.pods(ctx, set.GetNamespace(), fieldController, string(set.GetUID()))
		if err != nil {
			return nil, err
		}
		affected = append(affected, keys(pods)...)
	}
	return affected, nil
}

// pods lists pods of the cache without copies, unordered.
func (x *Index) pods(ctx context.Context, namespace, field, value string) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := x.reader.List(ctx, &pods, client.InNamespace(namespace), client.MatchingFields{field: value}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list pods by %s %s: %w", field, value, err)
	}
	return pods.Items, nil
}

func keys(pods []corev1.Pod) []types.NamespacedName {
	out := make([]types.NamespacedName, len(pods))
	for i := range pods {
		out[i] = client.ObjectKeyFromObject(&pods[i])
	}
	return out
}
