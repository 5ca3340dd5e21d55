package keda

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/mica-gpu/mica/pkg/elastic/workload"
	"github.com/mica-gpu/mica/pkg/scaleout"
)

// replicaCap is the number of replicas for which there are, or can be, devices.
type replicaCap struct {
	replicas int
	why      string
}

// allowed caps a value: replicas beyond it would wait for devices that no node has and no group may
// add.
func (s *Scaler) allowed(ctx context.Context, r resolved, wanted float64) (float64, error) {
	replica := replicaOf(r.target)
	if placed := placed(r.target); wanted <= float64(placed)*r.trigger.Threshold {
		// Running pods need no room. The request registers the replica, so that the next plan has an answer
		// when the load rises.
		ended, end := context.WithCancel(ctx)
		end()
		_, _ = s.Forecast.Supply(ended, replica)
		s.capEvents.lift(ctx, r)
		return wanted, nil
	}
	supply, err := s.supply(ctx, replica)
	if errors.Is(err, errUnplannable) {
		s.notices.report(ctx, r, degraded{err, wanted, reasonUncapped})
		s.capEvents.lift(ctx, r)
		return wanted, nil
	}
	if err != nil {
		return 0, fmt.Errorf("cannot count devices for more replicas of %s: %w", r.target.Ref, err)
	}
	c := replicaCap{replicas: s.possible(r.target, supply), why: supply.Why}
	most := float64(c.replicas) * r.trigger.Threshold
	if wanted <= most {
		s.capEvents.lift(ctx, r)
		return wanted, nil
	}
	s.capEvents.report(ctx, r, replicas(wanted, r.trigger.Threshold), c)
	return most, nil
}

// patience is how long a request waits for a plan.
const patience = 10 * time.Second

// errUnplannable marks replicas that no plan can include, such as those with a constraint unknown to
// the planner.
var errUnplannable = errors.New("nothing can be planned with it")

func (s *Sources) supply(ctx context.Context, replica scaleout.Replica) (scaleout.Supply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	supply, err := s.Forecast.Supply(ctx, replica)
	if err != nil {
		return scaleout.Supply{}, unavailable(err)
	}
	if supply.Problem != "" {
		return scaleout.Supply{}, failure{fmt.Errorf("%w: %s", errUnplannable, supply.Problem), codes.FailedPrecondition}
	}
	return supply, nil
}

func replicaOf(target *workload.State) scaleout.Replica {
	replica := scaleout.Replica{ID: target.Ref.Namespace + "/" + target.Ref.String()}
	if len(target.Gang) == 0 {
		replica.Pod = target.Template
		return replica
	}
	for _, member := range target.Gang {
		replica.Gang = append(replica.Gang, scaleout.Member{Pod: member.Pod, Count: member.Count})
	}
	return replica
}

// placed counts the target's replicas with a node, including gangs that are incomplete.
func placed(target *workload.State) int {
	n := 0
	for _, replica := range target.Replicated() {
		if slices.ContainsFunc(replica, func(pod workload.Pod) bool { return pod.Node != "" }) {
			n++
		}
	}
	return n
}

// possible counts running replicas, pending ones with a place in the plan, and the room for more. Pods
// created after the plan, and incomplete gangs, take from that room.
func (s *Sources) possible(target *workload.State, supply scaleout.Supply) int {
	planned, size := 0, target.Size()
	for _, replica := range target.Replicated() {
		if len(replica) >= size && !slices.ContainsFunc(replica, s.unplanned) {
			planned++
		}
	}
	return max(planned+supply.Total(), placed(target))
}

// unplanned reports whether the last plan lacked the pod or found no room for it.
func (s *Sources) unplanned(pod workload.Pod) bool {
	return !s.Forecast.Known(pod.UID) || pod.Node == "" && s.Forecast.Blocked(pod.UID)
}

// replicas is the HPA's count for a value.
func replicas(value, threshold float64) int {
	return int(min(math.Ceil(value/threshold), math.MaxInt32))
}
