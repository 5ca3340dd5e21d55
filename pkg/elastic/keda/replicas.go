package keda

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// heldReplicas counts the replicas that are to stay, for a formula beside others' triggers: those
// whose devices are in use by the thresholds of a profile, and never more than there are.
type heldReplicas struct {
	polled
	// thresholds are those of the profile's signals of devices.
	thresholds map[string]float64
}

func readHeld(fields, string, *workload.Ref) (metric, error) { return heldReplicas{}, nil }

// by takes the thresholds of a profile.
func (m heldReplicas) by(p profile.Profile) metric {
	m.thresholds = map[string]float64{}
	for _, signal := range p.Triggers {
		if profile.OfDevices(signal) {
			m.thresholds[signal] = p.Targets[signal]
		}
	}
	return m
}

func (m heldReplicas) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	kept := 0.0
	var untold error
	for _, signal := range slices.Sorted(maps.Keys(m.thresholds)) {
		d, err := definitionOf(signal)
		if err != nil {
			return 0, err
		}
		used, err := d.read(nil, "", nil)
		if err != nil {
			return 0, err
		}
		v, err := used.value(ctx, from, target)
		switch {
		case errors.Is(err, usage.ErrUntold):
			untold = err
		case err != nil && ctx.Err() == nil:
			return 0, degrade(err, float64(target.Replicas))
		case err != nil:
			return 0, err
		}
		kept = max(kept, v/m.thresholds[signal])
	}
	kept = min(kept, float64(target.Replicas))
	if untold != nil {
		return 0, degraded{untold, kept, reasonHoldsNone}
	}
	return kept, nil
}

// possibleReplicas counts the replicas for which there are, or can be, devices.
type possibleReplicas struct{ polled }

// unlimited is for a target whose pods claim no devices: there may be nodes for it of which Mica
// knows nothing.
const unlimited = math.MaxInt32

func readPossible(fields, string, *workload.Ref) (metric, error) { return possibleReplicas{}, nil }

func (possibleReplicas) value(ctx context.Context, from *Sources, target *workload.State) (float64, error) {
	if !target.Claims {
		return unlimited, nil
	}
	supply, err := from.supply(ctx, replicaOf(target))
	if errors.Is(err, errUnplannable) {
		return 0, degraded{err, unlimited, reasonUncapped}
	}
	if err != nil {
		return 0, fmt.Errorf("for how many replicas of %s there are devices is not known: %w", target.Ref, err)
	}
	return float64(from.possible(target, supply)), nil
}

// arriving tells whether a replica waits for its devices or loads what it serves.
func (t *Trigger) arriving(target *workload.State, now time.Time) bool {
	return t.loading(target, now) || slices.ContainsFunc(target.Pods, func(p workload.Pod) bool { return p.Pending > 0 })
}
