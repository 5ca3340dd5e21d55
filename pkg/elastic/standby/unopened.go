package standby

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/mica-gpu/mica/api/v1alpha1"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

const (
	// lookEvery is how often pods are looked at.
	lookEvery = 30 * time.Second
	// unopenedAfter is longer than KEDA takes to ask about a workload.
	unopenedAfter = 2 * time.Minute
)

// Unopened says on pods that nobody opens their gates, and what to do. The leader runs it.
type Unopened struct {
	Client client.Client
	Clock  clock.WithTicker
	// Serves tells that this controller serves KEDA, and so opens gates.
	Serves bool
}

// Start looks until ctx ends.
func (u *Unopened) Start(ctx context.Context) error {
	ticker := u.Clock.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if err := u.look(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot say on pods that nobody opens their readiness gates; trying again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (u *Unopened) look(ctx context.Context) error {
	var pods corev1.PodList
	if err := u.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	now := u.Clock.Now()
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !neglected(pod, now) {
			continue
		}
		t := &task{pod: client.ObjectKeyFromObject(pod), uid: pod.UID, reason: reasonUnopened, message: u.why()}
		if err := write(ctx, u.Client, t, now); err != nil {
			return fmt.Errorf("write a condition of pod %s: %w", t.pod, err)
		}
	}
	return nil
}

// neglected tells of a pod that has waited, loaded, and that nobody has said anything of.
func neglected(pod *corev1.Pod, now time.Time) bool {
	if !workload.Gated(pod) || pod.DeletionTimestamp != nil {
		return false
	}
	loaded := false
	for _, c := range pod.Status.Conditions {
		switch c.Type {
		case v1alpha1.ConditionServing:
			return false
		case corev1.ContainersReady:
			loaded = c.Status == corev1.ConditionTrue && now.Sub(c.LastTransitionTime.Time) >= unopenedAfter
		}
	}
	return loaded
}

func (u *Unopened) why() string {
	const or = ", or remove the readiness gate " + string(v1alpha1.ConditionServing) + " from the pod template"
	if !u.Serves {
		return "nobody opens this gate, because Mica does not serve KEDA: set the chart's value controller.keda.enabled" + or
	}
	return "nobody opens this gate, because no trigger of Mica's scaler has the pod's workload as its target: print one with kubectl gpu scaledobject" + or
}
