package deletioncost

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// Workloads knows the pods of a workload: package workload.
type Workloads interface {
	Workload(ctx context.Context, ref workload.Ref) (workload.State, error)
}

// Usages knows how busy devices are: package usage.
type Usages interface {
	Usage(ctx context.Context, of workload.State) (usage.Usage, error)
}

const (
	// AnnotationManage with the value true, on the pods of a workload, leaves their deletion cost to
	// the controller.
	AnnotationManage = "mica.gpu/manage-deletion-cost"
	// annotationWritten has the cost that the controller wrote: another one is a user's or Karpenter's.
	annotationWritten = "mica.gpu/deletion-cost"
)

const (
	// every is how often workloads are looked at.
	every = 20 * time.Second
	// atMost is how often a pod is written.
	atMost = time.Minute
	// forgotten is a workload that nobody scales any more.
	forgotten = 5 * time.Minute
	// patience is for the plugins' answers, of a workload.
	patience = 5 * time.Second
)

// Options are what a Writer works with.
type Options struct {
	Workloads Workloads
	Usages    Usages
	// Client patches pods; Index has added the index to Reader, the controller's cache.
	Client client.Client
	Reader client.Reader
	Clock  clock.WithTicker
}

// Writer writes the costs of the workloads that it hears of. It is safe for concurrent use.
type Writer struct {
	Options

	mu     sync.Mutex
	scaled map[workload.Ref]time.Time
	// wrote is when each pod was written last; only Start's goroutine has it.
	wrote map[types.UID]time.Time
}

// indexHolder has pods that hold devices, as far as their claims say, by their nodes.
const indexHolder = "deletioncost.holder"

// Index adds to the cache what a Writer looks pods up by, before the cache starts.
func Index(ctx context.Context, cache client.FieldIndexer) error {
	return cache.IndexField(ctx, &corev1.Pod{}, indexHolder, func(object client.Object) []string {
		pod, is := object.(*corev1.Pod)
		if !is || pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil ||
			pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
			len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
			return nil
		}
		return []string{pod.Spec.NodeName}
	})
}

// New writes nothing yet.
func New(o Options) *Writer {
	return &Writer{Options: o, scaled: map[workload.Ref]time.Time{}, wrote: map[types.UID]time.Time{}}
}

// NeedLeaderElection is false: the replica that KEDA asks hears of workloads.
func (*Writer) NeedLeaderElection() bool { return false }

// Scaled tells that a workload is being scaled. It waits for nothing.
func (w *Writer) Scaled(ref workload.Ref) {
	if ref.Kind == workload.KindStatefulSet {
		return // it goes by ordinals
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.scaled[ref] = w.Clock.Now()
}

// Start writes until ctx ends.
func (w *Writer) Start(ctx context.Context) error {
	ticker := w.Clock.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
		for _, ref := range w.current() {
			if err := w.look(ctx, ref); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Cannot say which replica is to go first; trying again", "workload", klog.KRef(ref.Namespace, ref.Name), "why", err.Error())
			}
		}
	}
}

// current are the workloads that are being scaled. What is old is forgotten.
func (w *Writer) current() []workload.Ref {
	now := w.Clock.Now()
	for uid, at := range w.wrote {
		if now.Sub(at) > atMost {
			delete(w.wrote, uid)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	var refs []workload.Ref
	for ref, at := range w.scaled {
		if now.Sub(at) > forgotten {
			delete(w.scaled, ref)
			continue
		}
		refs = append(refs, ref)
	}
	return refs
}

func (w *Writer) look(ctx context.Context, ref workload.Ref) error {
	state, err := w.Workloads.Workload(ctx, ref)
	if err != nil || len(state.Pods) < 2 || !state.ByCost {
		return err
	}
	replicas, err := w.replicas(ctx, state)
	if err != nil {
		return err
	}
	for _, r := range outdated(replicas) {
		if _, lately := w.wrote[r.pod.UID]; lately {
			continue
		}
		w.wrote[r.pod.UID] = w.Clock.Now()
		if err := w.write(ctx, ref.Namespace, r); err != nil {
			return err
		}
	}
	return nil
}

// replicas are those on nodes whose devices tell how busy they are.
func (w *Writer) replicas(ctx context.Context, state workload.State) ([]replica, error) {
	within, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all []replica
	for _, pod := range state.Pods {
		if pod.Node == "" || len(pod.Devices) == 0 {
			continue
		}
		alone := state
		alone.Pods = []workload.Pod{pod}
		used, err := w.Usages.Usage(within, alone)
		if err == nil {
			err = used.Utilization.Err
		}
		if err != nil {
			return nil, fmt.Errorf("of pod %s: %w", pod.Name, err)
		}
		r := replica{pod: pod, load: used.Utilization.Value}
		if r.neighbors, err = w.neighbors(ctx, pod.Node); err != nil {
			return nil, err
		}
		chosen, err := w.written(ctx, state.Ref.Namespace, &r)
		if err != nil {
			return nil, err
		}
		if !chosen {
			continue
		}
		all = append(all, r)
	}
	return all, nil
}

func (w *Writer) neighbors(ctx context.Context, node string) (int, error) {
	var pods corev1.PodList
	if err := w.Reader.List(ctx, &pods, client.MatchingFields{indexHolder: node}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list the pods of node %s that hold devices: %w", node, err)
	}
	return max(len(pods.Items)-1, 0), nil
}

// written reads the cost that the pod has: 0 where it has none, or what is no number. It reports whether
// the pod's workload leaves the cost to the controller, and nothing else has written one.
func (w *Writer) written(ctx context.Context, namespace string, r *replica) (bool, error) {
	var pod corev1.Pod
	err := w.Reader.Get(ctx, types.NamespacedName{Namespace: namespace, Name: r.pod.Name}, &pod, client.UnsafeDisableDeepCopy)
	if err != nil {
		return false, fmt.Errorf("read pod %s/%s: %w", namespace, r.pod.Name, err)
	}
	cost, has := pod.Annotations[corev1.PodDeletionCost]
	if pod.Annotations[AnnotationManage] != "true" || has && pod.Annotations[annotationWritten] != cost {
		return false, nil
	}
	if r.written, err = strconv.Atoi(cost); err != nil {
		r.written = 0
	}
	return true, nil
}

func (w *Writer) write(ctx context.Context, namespace string, r replica) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": r.pod.UID, "annotations": map[string]string{corev1.PodDeletionCost: strconv.Itoa(r.cost()), annotationWritten: strconv.Itoa(r.cost())},
	}})
	if err != nil {
		return err
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = namespace, r.pod.Name
	// By the way of its status: the controller may patch no pod itself.
	err = w.Client.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it has gone, or is another
	}
	if err != nil {
		return fmt.Errorf("write the deletion cost of pod %s/%s: %w", namespace, r.pod.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Wrote the deletion cost of a pod", "pod", klog.KRef(namespace, r.pod.Name), "cost", r.cost(), "before", r.written)
	return nil
}
