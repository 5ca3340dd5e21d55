package keda

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/mica-gpu/mica/pkg/scaleout/workload"
)

// ReasonCapped is the reason of Events on a target that would have more replicas than there can
// be devices for.
const ReasonCapped = "ScaleCapped"

var cappedTriggers = prometheus.NewGauge(prometheus.GaugeOpts{
	Name: "mica_keda_capped_triggers",
	Help: "Triggers that ask for more replicas than there are, or can be, devices for.",
})

func init() { metrics.Registry.MustRegister(cappedTriggers) }

// forgotten is how long after its last question a trigger is taken for gone.
const forgotten = 5 * time.Minute

// mostCaps are told of at a time: a client chooses how many triggers there are.
const mostCaps = 4096

// caps tells of triggers that are capped, once for each cap.
type caps struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu    sync.Mutex
	caps  map[identity]lasting
	swept time.Time
}

type lasting struct {
	capacity
	asked time.Time
}

func newCaps(recorder events.EventRecorder, c clock.PassiveClock) *caps {
	return &caps{recorder: recorder, clock: c, caps: map[identity]lasting{}, swept: c.Now()}
}

// capped tells who looks at the target why it does not grow. How many replicas are wanted
// changes by the second, and is told as it is when something else has changed.
func (c *caps) capped(ctx context.Context, l look, wanted int, may capacity) {
	if !c.remember(l.id, may) {
		return
	}
	note := fmt.Sprintf("ScaledObject %s asks by metric %s for %d replicas of %s; there are, or can be, devices for %d",
		l.ref.GetName(), l.trigger.kind.name, wanted, l.target.Ref, may.replicas)
	if may.why != "" {
		note += ": " + may.why
	}
	klog.FromContext(ctx).Info("There are not devices for as many replicas as are asked for",
		"target", klog.KRef(l.target.Ref.Namespace, l.target.Ref.Name), "scaledObject", klog.KRef(l.ref.GetNamespace(), l.ref.GetName()),
		"metric", l.trigger.kind.name, "wanted", wanted, "possible", may.replicas, "why", may.why)
	// Within some minutes the recorder only counts an Event that has all but its note in common
	// with the one before: the number is in the action, so that a new one is written.
	c.recorder.Eventf(object(l.target), nil, corev1.EventTypeWarning, ReasonCapped, fmt.Sprintf("CapAt%dReplicas", may.replicas), "%s", cut(note, mostNote))
}

// mostNote is what an Event takes.
const mostNote = 1024

// remember tells whether the cap is new, and is to be told of.
func (c *caps) remember(id identity, may capacity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.caps[id]
	c.sweep()
	if !known && len(c.caps) >= mostCaps {
		return false
	}
	c.caps[id] = lasting{may, c.clock.Now()}
	c.count()
	return !known || before.capacity != may
}

// lifted tells that what was told holds no more.
func (c *caps) lifted(ctx context.Context, l look) {
	c.mu.Lock()
	_, known := c.caps[l.id]
	delete(c.caps, l.id)
	c.sweep()
	c.count()
	c.mu.Unlock()
	if known {
		klog.FromContext(ctx).Info("There are devices for as many replicas as are asked for",
			"target", klog.KRef(l.target.Ref.Namespace, l.target.Ref.Name), "scaledObject", klog.KRef(l.ref.GetNamespace(), l.ref.GetName()),
			"metric", l.trigger.kind.name)
	}
}

func (c *caps) count() { cappedTriggers.Set(float64(len(c.caps))) }

// sweep drops the triggers that nobody asks about.
func (c *caps) sweep() {
	if now := c.clock.Now(); now.Sub(c.swept) >= forgotten {
		c.swept = now
		for id, l := range c.caps {
			if now.Sub(l.asked) >= forgotten {
				delete(c.caps, id)
			}
		}
	}
}

// object is the target's for an Event: all that triggers scale is of one API.
func object(target *workload.State) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: target.Ref.Kind, Namespace: target.Ref.Namespace, Name: target.Ref.Name, UID: target.UID,
	}
}
