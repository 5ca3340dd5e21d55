package keda

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/utils/lru"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// serve opens the readiness gates of the target's pods: as many as KEDA wants replicas, less the
// standbys, and at once as many as the present load needs. wanted is 0 if the load is unknown. An open
// gate stays open.
func (s *Scaler) serve(ctx context.Context, r resolved, wanted float64) {
	if r.target == nil || !r.target.Gated {
		return
	}
	count := int(r.target.Replicas) - s.warm.of(r, s.Clock.Now())
	if r.trigger.definition.load && !r.trigger.Holds && wanted > r.trigger.Activation {
		count = max(count, replicas(wanted, r.trigger.Threshold))
	}
	s.Gates.Serve(ctx, leading(r.target), count, "ScaledObject "+r.ref.GetName())
}

// warmTargets remembers the standbys of each target: the largest number among its triggers, because
// other triggers of a ScaledObject may have none.
type warmTargets struct {
	mu    sync.Mutex
	known *lru.Cache
}

// warmth is the largest number of standbys, since the target's first request.
type warmth struct {
	most      int
	at, since time.Time
}

// mostTargets bounds memory: a client chooses how many targets there are.
const mostTargets = 4096

// firstRound is longer than KEDA takes to ask about all triggers of a ScaledObject. Until then, a
// trigger with more standbys may be unknown.
const firstRound = 45 * time.Second

// of returns the standbys of the trigger's target: all replicas until all triggers are known.
func (w *warmTargets) of(r resolved, now time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := r.target.Ref
	before, has := w.known.Get(key)
	known, _ := before.(warmth)
	if !has || now.Sub(known.at) >= forgotten {
		known = warmth{since: now}
	}
	if r.trigger.Warm >= known.most {
		known.most, known.at = r.trigger.Warm, now
	}
	w.known.Add(key, known)
	if known.most == 0 && now.Sub(known.since) < firstRound {
		return int(r.target.Replicas)
	}
	return known.most
}

// leading returns the target with one pod of each replica, the one with the gate.
func leading(target *workload.State) *workload.State {
	if len(target.Gang) == 0 {
		return target
	}
	of := *target
	of.Pods = slices.DeleteFunc(slices.Clone(target.Pods), func(pod workload.Pod) bool { return pod.Follows })
	return &of
}

// gatesOfAll returns an error if a gang has the gate on pods other than its leaders.
func gatesOfAll(target *workload.State) error {
	if len(target.Gang) == 0 || !slices.ContainsFunc(target.Gang[1:], func(m workload.Member) bool { return m.Gated }) {
		return nil
	}
	return failure{fmt.Errorf("other pods of %s than the leaders have the readiness gate mica.gpu/serving, which is opened for the leaders alone: give the leaders a template of their own with the gate, and take it from the workers'",
		target.Ref), codes.FailedPrecondition}
}

// ungated is the error of a trigger with standbys whose target has no gate.
func ungated(t *Trigger) error {
	return failure{fmt.Errorf("%s %d keeps pods of %s behind a readiness gate that they do not have: add the conditionType mica.gpu/serving to readinessGates of its pod template, or leave %s out",
		keyWarm, t.Warm, t.Target, keyWarm), codes.FailedPrecondition}
}
