package keda

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mica-gpu/mica/pkg/elastic/profile"
	"github.com/mica-gpu/mica/pkg/elastic/usage"
	"github.com/mica-gpu/mica/pkg/elastic/workload"
)

// heldReplicas counts the replicas to keep, for a formula beside triggers of others: replicas whose
// devices are in use by a profile's thresholds, at most those that exist.
type heldReplicas struct {
	polled
	// thresholds are the profile's, by device metric.
	thresholds map[string]float64
}

func readHeld(fields, string, *workload.Ref) (metric, error) { return heldReplicas{}, nil }

// by uses the thresholds of a profile.
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
	used := map[string]deviceUsage{profile.GPUUtilization: utilization, profile.GPUMemory: memory}
	kept := 0.0
	var unreported error
	for _, signal := range slices.Sorted(maps.Keys(m.thresholds)) {
		v, err := used[signal].value(ctx, from, target)
		switch {
		case errors.Is(err, usage.ErrNotReported):
			unreported = err
		case err != nil && ctx.Err() == nil:
			return 0, degrade(err, float64(target.Replicas))
		case err != nil:
			return 0, err
		}
		kept = max(kept, v/m.thresholds[signal])
	}
	kept = min(kept, float64(target.Replicas))
	if unreported != nil {
		return 0, degraded{unreported, kept, reasonHoldsNone}
	}
	return kept, nil
}

// possibleReplicas counts the replicas for which there are, or can be, devices.
type possibleReplicas struct{ polled }

// unlimited is for a target whose pods claim no devices; Mica may not know their nodes.
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
		return 0, fmt.Errorf("cannot count devices for more replicas of %s: %w", target.Ref, err)
	}
	return float64(from.possible(target, supply)), nil
}
