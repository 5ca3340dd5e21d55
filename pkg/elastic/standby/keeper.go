package standby

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

var openSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Name:    "mica_standby_open_duration_seconds",
	Help:    "Time from the moment in which a trigger had work for a standby to its gate being open.",
	Buckets: prometheus.ExponentialBuckets(0.005, 2, 12),
})

// Metrics returns the metrics of a process that opens gates.
func Metrics() []prometheus.Collector { return []prometheus.Collector{openSeconds} }

// Reasons of the condition.
const (
	reasonServing = "Serving"
	reasonStandby = "Standby"
)

// writers bounds concurrent patches.
const writers = 8

// written is how long a patch overrides the cache, which may lag.
const written = 30 * time.Second

// Keeper opens gates. It is safe for concurrent use. Several replicas of the controller may serve one
// workload, because all open the same gates and none closes one.
type Keeper struct {
	client client.Client
	nodes  client.Reader
	clock  clock.WithTicker
	queue  workqueue.TypedInterface[types.UID]

	mu sync.Mutex
	// tasks are pending and recent patches, by pod.
	tasks map[types.UID]*task
}

// task is a condition to write.
type task struct {
	pod             types.NamespacedName
	uid             types.UID
	open            bool
	reason, message string
	since           time.Time
}

// NewKeeper writes with the client and reads nodes from a cache.
func NewKeeper(c client.Client, nodes client.Reader, clock clock.WithTicker) *Keeper {
	return &Keeper{client: c, nodes: nodes, clock: clock, queue: workqueue.NewTyped[types.UID](), tasks: map[types.UID]*task{}}
}

// NeedLeaderElection is false: the replica that KEDA asks opens the gates.
func (*Keeper) NeedLeaderElection() bool { return false }

// Serve opens gates until count pods of the target serve, as far as they are loaded. It does not
// block. by names the ScaledObject in the pods' conditions.
func (k *Keeper) Serve(ctx context.Context, target *workload.State, count int, by string) {
	now := k.clock.Now()
	pods := k.overlaid(target.Pods, now)
	open, wait := choose(pods, count, func(node string) bool { return k.leaving(ctx, node) })
	for _, pod := range open {
		k.add(target, pod, task{open: true, reason: reasonServing, since: now,
			message: fmt.Sprintf("%s has work for %d serving pods of %s", by, count, target.Ref)})
	}
	for _, pod := range wait {
		if pod.GateReason != reasonStandby {
			k.add(target, pod, task{reason: reasonStandby, since: now,
				message: fmt.Sprintf("loaded, and out of Endpoints until %s has work for one more pod of %s", by, target.Ref)})
		}
	}
}

// overlaid applies recent patches to pods of the cache.
func (k *Keeper) overlaid(pods []workload.Pod, now time.Time) []workload.Pod {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid, t := range k.tasks {
		if now.Sub(t.since) > written {
			delete(k.tasks, uid)
		}
	}
	all := make([]workload.Pod, len(pods))
	for i, pod := range pods {
		if t := k.tasks[pod.UID]; t != nil && pod.Gate == workload.Standby {
			pod.GateReason = t.reason
			if t.open {
				pod.Gate = workload.Open
			}
		}
		all[i] = pod
	}
	return all
}

// leaving reports whether a node is cordoned or gone.
func (k *Keeper) leaving(ctx context.Context, name string) bool {
	var node corev1.Node
	err := k.nodes.Get(ctx, types.NamespacedName{Name: name}, &node, client.UnsafeDisableDeepCopy)
	return apierrors.IsNotFound(err) || err == nil && (node.Spec.Unschedulable || node.DeletionTimestamp != nil)
}

func (k *Keeper) add(target *workload.State, pod workload.Pod, t task) {
	t.pod, t.uid = types.NamespacedName{Namespace: target.Ref.Namespace, Name: pod.Name}, pod.UID
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tasks[pod.UID] = &t
	k.queue.Add(pod.UID)
}

// Start patches until ctx ends.
func (k *Keeper) Start(ctx context.Context) error {
	var working sync.WaitGroup
	for range writers {
		working.Go(func() {
			for k.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	k.queue.ShutDown()
	working.Wait()
	return nil
}

// work executes one task. It returns false after shutdown.
func (k *Keeper) work(ctx context.Context) bool {
	uid, end := k.queue.Get()
	if end {
		return false
	}
	defer k.queue.Done(uid)
	t := k.task(uid)
	if t == nil {
		return true
	}
	logger := klog.FromContext(ctx)
	err := write(ctx, k.client, t, k.clock.Now())
	switch {
	case err != nil && ctx.Err() == nil:
		k.forget(uid) // the next request tries again
		logger.Error(err, "Cannot write the readiness gate of a pod; trying again", "pod", t.pod, "open", t.open)
	case err == nil && t.open:
		openSeconds.Observe(k.clock.Since(t.since).Seconds())
		logger.Info("Opened the readiness gate of a standby", "pod", t.pod, "why", t.message)
	}
	return true
}

func (k *Keeper) task(uid types.UID) *task {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.tasks[uid]
}

func (k *Keeper) forget(uid types.UID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tasks, uid)
}

// write ignores a pod that is gone or was replaced by one of the same name. A closed gate's reason is
// written with the pod's resourceVersion, because another replica may have opened the gate.
func write(ctx context.Context, c client.Client, t *task, now time.Time) error {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = t.pod.Namespace, t.pod.Name
	if !t.open {
		if err := c.Get(ctx, t.pod, pod); err != nil {
			return client.IgnoreNotFound(err)
		}
		if isOpen(pod) {
			return nil
		}
	}
	err := c.Status().Patch(ctx, pod, conditionPatch(t, pod.ResourceVersion, now))
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

func isOpen(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == v1alpha1.ConditionServing && c.Status == corev1.ConditionTrue
	})
}

// conditionPatch changes the gate's condition of the pod with this UID, and with this resourceVersion
// unless it is empty.
func conditionPatch(t *task, version string, now time.Time) client.Patch {
	status := corev1.ConditionFalse
	if t.open {
		status = corev1.ConditionTrue
	}
	of := map[string]any{"uid": t.uid}
	if version != "" {
		of["resourceVersion"] = version
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": of,
		"status": map[string]any{"conditions": []corev1.PodCondition{{
			Type: v1alpha1.ConditionServing, Status: status, Reason: t.reason, Message: t.message,
			LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		}}},
	})
	utilruntime.Must(err) // a condition is texts
	return client.RawPatch(types.StrategicMergePatchType, patch)
}
