package keda

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/excerpt"
)

// reasonCapped is the reason of Events on a target that would have more replicas than there can
// be devices for.
const reasonCapped = "ScaleCapped"

// counted are the caps of the process's scaler.
var counted atomic.Pointer[capEvents]

// cappedTriggers counts when it is read: KEDA may have turned to another replica of the controller, and
// nobody asks here any more.
var cappedTriggers = prometheus.NewGaugeFunc(prometheus.GaugeOpts{
	Name: "mica_keda_capped_triggers",
	Help: "Triggers that ask for more replicas than there are, or can be, devices for.",
}, func() float64 {
	c := counted.Load()
	if c == nil {
		return 0
	}
	return float64(c.biting())
})

// forgotten is how long after its last question a trigger is taken for gone.
const forgotten = 5 * time.Minute

// mostCaps are told of at a time: a client chooses how many triggers there are.
const mostCaps = 4096

// capEvents tells of triggers that are capped, once for each cap that is not over at once.
type capEvents struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu    sync.Mutex
	caps  map[identity]capRecord
	swept time.Time
}

// capRecord is a cap since it was first told of.
type capRecord struct {
	// told is what was told last, at; nil once that holds no more.
	told *replicaCap
	at   time.Time
	// bites is false once the load is below the cap; asked is when it last was not.
	bites bool
	asked time.Time
}

// quiet is how long after one Event the next of a trigger may be. Triggers that share devices
// have another cap with each device that is taken, and a load may be about its cap.
const quiet = time.Minute

func newCapEvents(recorder events.EventRecorder, c clock.PassiveClock) *capEvents {
	caps := &capEvents{recorder: recorder, clock: c, caps: map[identity]capRecord{}, swept: c.Now()}
	counted.Store(caps)
	return caps
}

// report tells who looks at the target why it does not grow. How many replicas are wanted
// changes by the second, and is told as it is when something else has changed.
func (c *capEvents) report(ctx context.Context, r resolved, wanted int, may replicaCap) {
	if !c.remember(r.id, may) {
		return
	}
	note := fmt.Sprintf("ScaledObject %s asks by metric %s for %d replicas of %s; there are, or can be, devices for %d",
		r.ref.GetName(), r.trigger.definition.name, wanted, r.target.Ref, may.replicas)
	if size := r.target.Size(); size > 1 {
		note += fmt.Sprintf(", of which each is %d pods", size)
	}
	if may.why != "" {
		note += ": " + may.why
	}
	klog.FromContext(ctx).Info("Capped the replicas of a workload: there are no devices for more",
		"target", klog.KRef(r.target.Ref.Namespace, r.target.Ref.Name), "scaledObject", klog.KRef(r.ref.GetNamespace(), r.ref.GetName()),
		"metric", r.trigger.definition.name, "wanted", wanted, "possible", may.replicas, "why", may.why)
	// Within some minutes the recorder only counts an Event that has all but its note in common
	// with the one before: the number is in the action, so that a new one is written.
	c.recorder.Eventf(object(r.target), nil, corev1.EventTypeWarning, reasonCapped, fmt.Sprintf("CapAt%dReplicas", may.replicas), "%s", excerpt.Of(note, excerpt.MaxEvent))
}

// remember tells whether the cap is to be told of.
func (c *capEvents) remember(id identity, may replicaCap) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	now := c.clock.Now()
	l, known := c.caps[id]
	if !known && len(c.caps) >= mostCaps {
		return false
	}
	tell := !known || (l.told == nil || *l.told != may) && now.Sub(l.at) >= quiet
	if tell {
		l.told, l.at = &may, now
	}
	l.bites, l.asked = true, now
	c.caps[id] = l
	return tell
}

// lift tells that what was told holds no more.
func (c *capEvents) lift(ctx context.Context, r resolved) {
	if !c.forget(r.id) {
		return
	}
	klog.FromContext(ctx).Info("Lifted the cap on the replicas of a workload",
		"target", klog.KRef(r.target.Ref.Namespace, r.target.Ref.Name), "scaledObject", klog.KRef(r.ref.GetNamespace(), r.ref.GetName()),
		"metric", r.trigger.definition.name)
}

// forget tells whether something was told that holds no more.
func (c *capEvents) forget(id identity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	l, known := c.caps[id]
	if !known {
		return false
	}
	c.caps[id] = capRecord{at: l.at, asked: l.asked}
	return l.told != nil
}

// biting counts the caps below their load, of triggers that somebody asks about.
func (c *capEvents) biting() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, n := c.clock.Now(), 0
	for _, l := range c.caps {
		if l.bites && now.Sub(l.asked) < forgotten {
			n++
		}
	}
	return n
}

// sweep drops the triggers that nobody asks about.
func (c *capEvents) sweep() {
	if now := c.clock.Now(); now.Sub(c.swept) >= forgotten {
		c.swept = now
		for id, l := range c.caps {
			if now.Sub(l.asked) >= forgotten {
				delete(c.caps, id)
			}
		}
	}
}

// object is the target's for an Event.
func object(target *workload.State) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: target.APIVersion, Kind: target.Ref.Kind, Namespace: target.Ref.Namespace, Name: target.Ref.Name, UID: target.UID,
	}
}
