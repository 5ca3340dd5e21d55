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

// Workloads reads the pods of a workload: package workload.
type Workloads interface {
	Workload(ctx context.Context, ref workload.Ref) (workload.State, error)
}

// Usages reports how busy devices are: package usage.
type Usages interface {
	Usage(ctx context.Context, of workload.State) (usage.Usage, error)
}

const (
	// AnnotationManage on a workload's pods, with the value true, leaves their deletion cost to the
	// controller.
	AnnotationManage = "mica.gpu/manage-deletion-cost"
	// annotationWritten is the cost that the controller wrote; any other cost is a user's or Karpenter's.
	annotationWritten = "mica.gpu/deletion-cost"
)

const (
	// every is the interval between passes.
	every = 20 * time.Second
	// atMost is the least time between two patches of a pod.
	atMost = time.Minute
	// forgotten is when a workload counts as no longer scaled.
	forgotten = 5 * time.Minute
	// patience bounds the wait for the plugins' readings of a workload.
	patience = 5 * time.Second
)

// Options are what a Writer works with.
type Options struct {
	Workloads Workloads
	Usages    Usages
	// Client patches pods. Reader is the controller's cache, with the index that Index adds.
	Client client.Client
	Reader client.Reader
	Clock  clock.WithTicker
}

// Writer writes the costs of scaled workloads. It is safe for concurrent use.
type Writer struct {
	Options

	mu     sync.Mutex
	scaled map[workload.Ref]time.Time
	// wrote is when each pod was last patched; only Start's goroutine uses it.
	wrote map[types.UID]time.Time
}

// indexHolder finds pods with claims by node.
const indexHolder = "deletioncost.holder"

// Index adds the Writer's index to the cache. Call it before the cache starts.
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

// NeedLeaderElection is false: the replica that KEDA asks knows the workloads.
func (*Writer) NeedLeaderElection() bool { return false }

// Scaled notes that KEDA scales a workload. It does not block.
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
				klog.FromContext(ctx).V(2).Info("Cannot compute deletion costs; trying again", "workload", klog.KRef(ref.Namespace, ref.Name), "why", err.Error())
			}
		}
	}
}

// current lists the scaled workloads, and drops old ones.
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

// replicas lists the pods with devices whose costs may be written.
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

// written reads the pod's cost into r, 0 if unset or invalid. It reports whether the pod leaves its
// cost to the controller and no one else has set one.
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
	// A patch of the status, because the controller may not patch pods themselves.
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
