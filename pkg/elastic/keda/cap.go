package keda

import (
	"context"
	"fmt"
	"math"

	"github.com/mica-gpu/mica/pkg/scaleout"
)

// capacity is for how many replicas of a target there are, or can be, devices.
type capacity struct {
	replicas int
	why      string
}

// allowed is what may be reported of a value. A replica beyond that would wait for devices that
// nobody has and no group may grow.
func (s *Scaler) allowed(ctx context.Context, r resolved, wanted float64) (float64, error) {
	sample := scaleout.Sample{
		ID:  r.target.Ref.Namespace + "/" + r.target.Ref.String(),
		Pod: r.target.Template,
	}
	if placed := r.placed(); wanted <= float64(placed)*r.trigger.Threshold {
		// Pods that run need no room. The plan is still asked, so that it has the answer when
		// the load rises.
		ended, end := context.WithCancel(ctx)
		end()
		_, _ = s.Forecast.Room(ended, sample)
		s.caps.lifted(ctx, r)
		return wanted, nil
	}
	room, err := s.room(ctx, sample)
	if err != nil {
		return 0, fmt.Errorf("for how many replicas of %s there are devices is not known: %w", r.target.Ref, err)
	}
	c := capacity{replicas: s.possible(r, room), why: room.Why}
	most := float64(c.replicas) * r.trigger.Threshold
	if wanted <= most {
		s.caps.lifted(ctx, r)
		return wanted, nil
	}
	s.caps.capped(ctx, r, replicas(wanted, r.trigger.Threshold), c)
	return most, nil
}

// placed counts the target's pods that have a node.
func (r resolved) placed() int {
	n := 0
	for _, pod := range r.target.Pods {
		if pod.Node != "" {
			n++
		}
	}
	return n
}

// possible counts the replicas that there can be: those that run, those that wait for what the
// plan has for them, and as many as there is room for after that. A pod that came after the plan
// is to take of that room.
func (s *Scaler) possible(r resolved, room scaleout.Room) int {
	planned := 0
	for _, pod := range r.target.Pods {
		if s.Forecast.Known(pod.UID) && (pod.Node != "" || !s.Forecast.Blocked(pod.UID)) {
			planned++
		}
	}
	return max(planned+room.Total(), r.placed())
}

// replicas is for how many the HPA takes a value.
func replicas(value, threshold float64) int {
	return int(min(math.Ceil(value/threshold), math.MaxInt32))
}
