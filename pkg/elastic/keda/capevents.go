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

	"github.com/mica-gpu/mica/pkg/excerpt"
)

// reasonCapped is the reason of Events on a target whose triggers ask for more replicas than there can
// be devices for.
const reasonCapped = "ScaleCapped"

// forgotten is how long after KEDA's last request a trigger counts as deleted.
const forgotten = 5 * time.Minute

// mostCaps bounds memory: a client chooses how many triggers there are.
const mostCaps = 4096

// capEvents writes one Event for each cap that lasts.
type capEvents struct {
	recorder events.EventRecorder
	clock    clock.PassiveClock

	mu    sync.Mutex
	caps  map[identity]capRecord
	swept time.Time
}

// capRecord is a cap since its first Event.
type capRecord struct {
	// reported is the cap in the last Event, written at; nil once it was lifted.
	reported *replicaCap
	at       time.Time
	// applies is false once the load is below the cap; asked is KEDA's last request while it was not.
	applies bool
	asked   time.Time
}

// quiet is the least time between two Events of a trigger. The cap of triggers that share devices
// changes with each allocation, and a load may oscillate around its cap.
const quiet = time.Minute

func newCapEvents(recorder events.EventRecorder, c clock.PassiveClock) *capEvents {
	return &capEvents{recorder: recorder, clock: c, caps: map[identity]capRecord{}, swept: c.Now()}
}

// report writes an Event that says why the target does not grow. The number of desired replicas
// changes by the second and alone causes no new Event.
func (c *capEvents) report(ctx context.Context, r resolved, wanted int, may replicaCap) {
	if !c.remember(r.id, may) {
		return
	}
	note := fmt.Sprintf("ScaledObject %s asks by metric %s for %d replicas of %s; there are, or can be, devices for %d",
		r.ref.GetName(), r.trigger.definition.name, wanted, r.target.Ref, may.replicas)
	if size := r.target.Size(); size > 1 {
		note += fmt.Sprintf(", each of %d pods", size)
	}
	if may.why != "" {
		note += ": " + may.why
	}
	r.logger(ctx).Info("Capped the replicas of a workload: there are no devices for more", "wanted", wanted, "possible", may.replicas, "why", may.why)
	// The recorder aggregates Events that differ in their notes only. The action contains the number, so
	// that a new cap is a new Event.
	r.warn(c.recorder, reasonCapped, fmt.Sprintf("CapAt%dReplicas", may.replicas), note)
}

// remember records the cap and reports whether it needs an Event.
func (c *capEvents) remember(id identity, may replicaCap) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	now := c.clock.Now()
	l, known := c.caps[id]
	if !known && len(c.caps) >= mostCaps {
		return false
	}
	isNew := !known || (l.reported == nil || *l.reported != may) && now.Sub(l.at) >= quiet
	if isNew {
		l.reported, l.at = &may, now
	}
	l.applies, l.asked = true, now
	c.caps[id] = l
	return isNew
}

// lift logs that a reported cap no longer applies.
func (c *capEvents) lift(ctx context.Context, r resolved) {
	if c.forget(r.id) {
		r.logger(ctx).Info("Lifted the cap on the replicas of a workload")
	}
}

// forget reports whether a cap was reported that no longer applies.
func (c *capEvents) forget(id identity) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep()
	l, known := c.caps[id]
	if !known {
		return false
	}
	c.caps[id] = capRecord{at: l.at, asked: l.asked}
	return l.reported != nil
}

// gauge counts when it is collected: KEDA may have switched to another replica of the controller.
func (c *capEvents) gauge() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mica_keda_capped_triggers",
		Help: "Triggers that ask for more replicas than there are, or can be, devices for.",
	}, func() float64 { return float64(c.applying()) })
}

// applying counts caps below their load, of triggers that KEDA still asks about.
func (c *capEvents) applying() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, n := c.clock.Now(), 0
	for _, l := range c.caps {
		if l.applies && now.Sub(l.asked) < forgotten {
			n++
		}
	}
	return n
}

// sweep drops triggers that KEDA no longer asks about.
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

// logger adds the trigger's names to the log.
func (r resolved) logger(ctx context.Context) klog.Logger {
	return klog.FromContext(ctx).WithValues("target", klog.KRef(r.target.Ref.Namespace, r.target.Ref.Name),
		"scaledObject", klog.KRef(r.ref.GetNamespace(), r.ref.GetName()), "metric", r.trigger.definition.name)
}

// warn writes an Event on the target.
func (r resolved) warn(recorder events.EventRecorder, reason, action, note string) {
	target := &corev1.ObjectReference{
		APIVersion: r.target.APIVersion, Kind: r.target.Ref.Kind, Namespace: r.target.Ref.Namespace, Name: r.target.Ref.Name, UID: r.target.UID,
	}
	recorder.Eventf(target, nil, corev1.EventTypeWarning, reason, action, "%s", excerpt.Of(note, excerpt.MaxEvent))
}
